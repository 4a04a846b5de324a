// Gives the buttons of a page of others, which do nothing by themselves, something to do (`app.js`), drawn by a seed.
// Takes {seed, share, words: [...], pages: [...]}; the page keeps its own looks.
((options) => {
  let state = options.seed % 2147483647 || 1;
  const draw = () => (state = (state * 16807) % 2147483647) / 2147483647;
  const pick = (list) => list[Math.floor(draw() * list.length)];
  const word = () => pick(options.words);
  const inert = (el) => !Object.keys(el.dataset).length && el.getBoundingClientRect().height > 8 && !el.closest("[role=dialog],.modal,.dropdown-menu");
  const layer = document.createElement("div");
  layer.innerHTML = '<div id="toasts" style="right:20px;bottom:20px"></div>';
  document.body.append(layer);
  let count = 0;

  const dialog = () => {
    const id = `dressed${++count}`;
    const holder = document.createElement("div");
    holder.className = "w-layer";
    holder.innerHTML = `<form class="w-dialog" role="dialog" id="${id}" data-dim="${draw() < 0.5 ? 1 : ""}" data-focus="" hidden><h4 style="margin-top:0">${word()}</h4>
      <label>${word()}</label><input type="text" class="form-control" required style="border:1px solid #999;padding:6px"><div style="margin-top:14px;text-align:right">
      <button type="button" class="btn btn-secondary" data-close="">Cancel</button> <button type="button" class="btn btn-primary" data-submit="" data-busy="${pick([0, 700, 1500])}" data-clear="" data-say="${word()}" data-ms="2000">${pick(["Confirm", "Create", "Apply"])}</button></div></form>`;
    layer.append(holder);
    return id;
  };
  const deeds = [
    (el) => { el.dataset.toast = word(); el.dataset.ms = pick([1200, 2500, 4000]); },
    (el) => { el.dataset.busy = pick([400, 900, 1800]); el.dataset.during = pick(["Saving…", "Please wait…", "Loading…"]); el.dataset.say = word(); },
    (el) => { el.dataset.busy = pick([400, 900, 1800]); el.dataset.during = "Working…"; el.dataset.after = pick(["Saved", "Done", "Sent"]); },
    (el) => { el.dataset.modal = dialog(); },
    (el) => { el.dataset.tip = word(); },
    (el) => { el.dataset.busy = 300; el.dataset.during = "…"; el.dataset.vanish = ""; el.dataset.say = word(); },
  ];
  const menu = (el) => {
    const id = `dressed${++count}`;
    const anchor = document.createElement("span");
    anchor.className = "w-anchor";
    el.replaceWith(anchor);
    anchor.append(el);
    const items = Array.from({ length: 2 + Math.floor(draw() * 4) }, () => `<a data-item="" role="menuitem">${word()}</a>`).join("");
    anchor.insertAdjacentHTML("beforeend", `<div class="w-menu" role="menu" id="${id}" hidden>${items}</div>`);
    el.dataset.menu = id;
    // a menu at the right edge opens to the left
    if (el.getBoundingClientRect().left > innerWidth - 200) anchor.lastChild.style.right = "0";
  };
  const popover = (el) => {
    const id = `dressed${++count}`;
    el.insertAdjacentHTML("afterend", `<span class="w-anchor"><div class="w-pop" id="${id}" data-kind="popover" hidden>${word()} ${word().toLowerCase()}</div></span>`);
    el.dataset.pop = id;
  };
  if (options.pages.length) {
    deeds.push(menu, menu, popover);
    // a label that stands alone with one field belongs to it
    document.querySelectorAll("label:not([for])").forEach((label, i) => {
      const fields = label.parentElement.querySelectorAll("input,textarea");
      if (label.control || fields.length !== 1) return;
      fields[0].id ||= `field${i}`;
      label.htmlFor = fields[0].id;
    });
    // menus, bars and footers are the same on every page, so a link leads to the same one from everywhere
    const marked = new Set();
    document.querySelectorAll(".w-side li a[href='#'],.w-bar nav a[href='#'],footer a[href='#']").forEach((el, i) => {
      el.href = options.pages[i % options.pages.length];
      const part = el.closest(".w-side,.w-bar,footer");
      el.classList.toggle("w-on", el.pathname === location.pathname && !marked.has(part));
      if (el.pathname === location.pathname) marked.add(part);
    });
  }
  for (const el of document.querySelectorAll("button,a[href='#'],a.btn:not([href]),input[type=submit]")) {
    if (!inert(el) || draw() > options.share) continue;
    if (el.closest("form") && el.closest("form").querySelector("input") && el.matches("button,.btn")) { el.dataset.submit = ""; el.dataset.busy = pick([0, 800, 1600]); el.dataset.say = word(); }
    else pick(deeds)(el);
  }
  for (const form of document.forms) for (const field of form.querySelectorAll("input[type=text],input[type=email],input[type=password]")) if (draw() < 0.5) field.required = true;
  const head = document.querySelector("h1,nav .nav,nav ul,header");
  if (head && draw() < 0.4) {
    const badge = document.createElement("span");
    badge.style.cssText = "font-size:13px;padding:2px 8px;margin:0 8px;background:#555;color:#fff;border-radius:4px;align-self:center";
    badge.dataset.from = String(Math.floor(30 + draw() * 500));
    badge.dataset[draw() < 0.5 ? "clock" : "countdown"] = "";
    head.append(badge);
  }
  window.app.begin(document);
})
