// Tooltips of marks: shown while a mark is hovered, touched or focused. Buttons that copy remedies.
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
  for (const button of document.querySelectorAll("[data-copy]")) {
    button.hidden = false;
    const label = button.textContent;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.dataset.copy);
        button.textContent = "copied";
      } catch {
        button.textContent = button.dataset.copy;  // to be copied by hand
      }
      setTimeout(() => { button.textContent = label; }, 4000);
    });
  }
  // print collapsed sections as well
  addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
})();
