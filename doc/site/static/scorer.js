// The glossary comes first, at the term's entry: who searches for it wants to know what it means.
const entry = new URLSearchParams(location.search).get("q")?.trim().toLowerCase().replace(/ +/g, "-");
var Scorer = {  // not const: the search declares it, too
  score: (found) => {
    if (found[0] !== "doc/glossary") return found[4];
    if (/^[a-z][a-z0-9-]*$/.test(entry)) [found[2], found[3]] = [`#${entry}`, entry];
    return found[4] + 100;
  },
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
