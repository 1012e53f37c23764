// Tooltips of marks: shown while a mark is hovered, touched or focused.
"use strict";
(() => {
  const tip = document.querySelector(".tip");
  const show = (mark) => {
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const rect = mark.getBoundingClientRect();
    const maxLeft = document.documentElement.clientWidth - tip.offsetWidth - 8;
    const above = rect.top - tip.offsetHeight - 8;
    tip.style.left = Math.max(8, Math.min(rect.left, maxLeft)) + scrollX + "px";
    tip.style.top = (above > 0 ? above : rect.bottom + 8) + scrollY + "px";
  };
  const update = (event) => {
    const mark = event.target.closest("[data-tip]");
    if (mark) show(mark); else tip.hidden = true;
  };
  for (const name of ["pointerover", "pointerdown", "focusin"]) {
    document.addEventListener(name, update);
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") tip.hidden = true;
  });
  // print collapsed sections as well
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
})();
