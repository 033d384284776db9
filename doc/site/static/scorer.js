// The glossary comes first: who searches for a term wants to know what it means.
var Scorer = {  // not const: the search declares it, too
  score: ([page, , , , score]) => score + (page === "doc/glossary" ? 100 : 0),
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
