// What a mark stands for, where it is pointed at, touched or in focus.
"use strict";
(() => {
  const tip = document.querySelector(".tip");
  const show = (mark) => {
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const at = mark.getBoundingClientRect();
    const room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const above = at.top - tip.offsetHeight - 8;
    tip.style.left = Math.max(8, Math.min(at.left, room)) + scrollX + "px";
    tip.style.top = (above > 0 ? above : at.bottom + 8) + scrollY + "px";
  };
  const begin = (event) => {
    const mark = event.target.closest("[data-tip]");
    if (mark) show(mark); else tip.hidden = true;
  };
  for (const name of ["pointerover", "pointerdown", "focusin"]) {
    document.addEventListener(name, begin);
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tip.hidden = true;
  });
  // what is folded is printed all the same
  addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details")) one.open = true;
  });
})();
