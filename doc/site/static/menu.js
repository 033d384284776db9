// The groups of the menu are folded, but for that of this page. Without this script all are open.
for (const caption of document.querySelectorAll(".sidebar-tree .caption")) {
  const pages = caption.nextElementSibling;
  const fold = (folded) => {
    pages.hidden = folded;
    caption.setAttribute("aria-expanded", String(!folded));
  };
  caption.setAttribute("role", "button");
  caption.tabIndex = 0;
  caption.addEventListener("click", () => fold(!pages.hidden));
  caption.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    fold(!pages.hidden);
  });
  fold(pages.querySelector(".current-page") === null);
}
