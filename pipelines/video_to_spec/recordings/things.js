// What can be acted on in a page and how it reads, for the director of a recording. One expression: an object of functions.
(() => {
  const ICONS = "[class*=material-icons],[class*=material-symbols],.sr-only,.visually-hidden,script,style,svg,[data-clock],[data-countdown]";
  // signs that are pictures (arrows, shapes, dingbats, emoji, icon fonts) are icons and not text; so is what has no letter or digit
  const SIGNS = /[\u2190-\u21ff\u2300-\u23ff\u2500-\u27bf\u2b00-\u2bff\ue000-\uf8ff\u{1f000}-\u{1faff}\ufe0f]/gu;
  const clean = (text) => { const words = text.replace(SIGNS, " ").replace(/\s+/g, " ").trim(); return /[\p{L}\p{N}]/u.test(words) ? words : ""; };
  const boxOf = (el) => { const r = el.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };

  // text as it is seen: letter case of the style, nothing of icon fonts, of clocks, nothing hidden
  const read = (el) => {
    let out = "";
    const walk = document.createTreeWalker(el, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode()) {
      const parent = node.parentElement;
      if (parent.closest(ICONS)) continue;
      const style = getComputedStyle(parent);
      const range = document.createRange();
      range.selectNodeContents(node);
      const rect = range.getBoundingClientRect();
      if (style.visibility === "hidden" || rect.width < 1 || rect.height < 1) continue;
      const text = node.textContent;
      out += " " + (style.textTransform === "uppercase" ? text.toUpperCase() : style.textTransform === "lowercase" ? text.toLowerCase()
        : style.textTransform === "capitalize" ? text.replace(/(^|\s)\S/g, (c) => c.toUpperCase()) : text);
    }
    return clean(out);
  };

  const labelOf = (field) => {
    const wrap = field.closest(".field,.mb-3,.form-group,.input-group,.form-floating");
    const label = (field.labels && field.labels[0]) || (wrap && wrap.querySelectorAll("input,select,textarea").length === 1 && wrap.querySelector("label"));
    const text = label ? read(label) : "";
    return text || (field.value ? "" : clean(field.placeholder || ""));
  };

  // of a box to tick: the label that belongs to it, or stands beside it
  const tickLabel = (box) => {
    const label = (box.labels && box.labels[0]) || box.parentElement.querySelector("label");
    return label ? read(label) : "";
  };

  const kindOf = (el) => {
    for (const name of ["menu", "item", "modal", "close", "tab", "page", "theme", "submit", "busy", "split", "pop", "tip", "toast", "card", "go"])
      if (el.dataset && name in el.dataset && el.dataset[name] !== undefined) return name;
    const toggle = el.dataset.toggle || el.dataset.bsToggle;
    if (toggle === "dropdown") return "menu";
    if (toggle === "modal") return "modal";
    if (toggle === "tab" || toggle === "pill") return "tab";
    if (toggle === "collapse") return "fold";
    if (el.dataset.dismiss === "modal" || el.dataset.bsDismiss === "modal") return "close";
    if (el.matches("input:not([type]),input[type=text],input[type=email],input[type=password],input[type=search],textarea")) return "field";
    if (el.matches("input[type=checkbox],input[type=radio]")) return "tick";
    const href = el.getAttribute("href") || "";
    if (el.matches("a[href]") && /^[^:#?]+\.html$/.test(href)) return "go";
    if (el.matches(".dropdown-menu.show a[href='#'],.open>.dropdown-menu a[href='#']")) return "item";
    return "";
  };

  const SOUGHT = "a,button,input,textarea,[data-menu],[data-tip],[data-item],[data-card]";
  let seen = [];
  const things = () => {
    seen = [];
    const out = [];
    for (const el of document.querySelectorAll(SOUGHT)) {
      const kind = kindOf(el);
      if (!kind || el.disabled || el.readOnly) continue;
      const rect = el.getBoundingClientRect();
      const style = getComputedStyle(el);
      if (rect.width < 8 || rect.height < 8 || style.visibility === "hidden" || style.opacity === "0") continue;
      if (rect.left < 0 || rect.top < 0 || rect.right > innerWidth || rect.bottom > innerHeight) continue;
      const hit = document.elementFromPoint((rect.left + rect.right) / 2, (rect.top + rect.bottom) / 2);
      if (!hit || !(el.contains(hit) || hit.contains(el) && kind === "tick")) continue;
      const field = kind === "field";
      out.push({
        ref: seen.length, kind, box: boxOf(el), text: (field ? labelOf(el) : kind === "tick" ? tickLabel(el) : read(el)) || null,
        type: field ? el.type : "", value: field ? el.value : "", href: el.getAttribute("href") || "",
        required: field && el.required, on: el.matches(".active,.w-on,[aria-selected=true],.is-active,.is-current"),
        modal: !!el.closest("[role=dialog],.modal"), form: el.closest("form") ? [...document.forms].indexOf(el.closest("form")) : -1,
        data: { ...el.dataset },
      });
      seen.push(el);
    }
    return out;
  };

  // the end of the crumbs, or the largest heading in view that is not a part of the frame around the page
  const heading = () => {
    const crumb = [...document.querySelectorAll(".breadcrumb .active")].pop();
    if (crumb && crumb.getBoundingClientRect().height > 4 && crumb.getBoundingClientRect().top >= 0 && read(crumb)) return crumb;
    let best = null, size = 0;
    for (const el of document.querySelectorAll("h1,h2,h3,h4,h5,h6")) {
      const rect = el.getBoundingClientRect();
      const px = parseFloat(getComputedStyle(el).fontSize);
      if (rect.height < 4 || rect.top < 0 || rect.top > innerHeight || !read(el)) continue;
      const frame = el.closest("nav,header,aside,[class*=sidebar],[class*=sidenav],[class*=navbar],[role=dialog],.modal");
      if (frame && frame !== document.body) continue;
      if (px > size) { best = el; size = px; }
    }
    return best;
  };

  const screen = () => {
    const view = document.body.dataset.screen;
    const head = view ? document.querySelector(`[data-view="${view}"] h1`) : heading();
    return { key: view || location.pathname, title: (head && read(head)) || clean(document.title) || location.pathname.split("/").pop() };
  };

  // where the caret stands in the field that has the focus: [x, top, bottom, colour], or null
  const caret = () => {
    const el = document.activeElement;
    if (!el || !el.matches("input,textarea") || !("value" in el)) return null;
    const style = getComputedStyle(el), rect = el.getBoundingClientRect();
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = `${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    const value = el.type === "password" ? "\u2022".repeat(el.value.length) : el.value.split("\n").pop();
    const left = rect.left + parseFloat(style.borderLeftWidth) + parseFloat(style.paddingLeft);
    const right = rect.right - parseFloat(style.borderRightWidth) - parseFloat(style.paddingRight);
    const x = Math.min(left + pen.measureText(value).width + 1 - el.scrollLeft, right);
    const size = parseFloat(style.fontSize);
    const middle = el.matches("textarea") ? rect.top + parseFloat(style.borderTopWidth) + parseFloat(style.paddingTop) + size * 0.7 : (rect.top + rect.bottom) / 2;
    return [x, middle - size * 0.6, middle + size * 0.6, style.color];
  };

  const dropdowns = () => [...document.querySelectorAll(".dropdown-menu.show,.open>.dropdown-menu,[role=menu]:not([hidden]):not(.dropdown-menu)")]
    .filter((el) => el.getBoundingClientRect().height > 4).map((el) => ({ kind: "dropdown", box: boxOf(el), text: read(el) }));
  const modals = () => [...document.querySelectorAll(".modal.show .modal-dialog,.modal.in .modal-dialog,[role=dialog]:not([hidden]):not(.modal)")]
    .filter((el) => el.getBoundingClientRect().height > 4).map((el) => ({ kind: "modal", box: boxOf(el), text: read(el) }));
  const others = () => [...document.querySelectorAll("[data-kind]:not([hidden])")]
    .filter((el) => el.getBoundingClientRect().height > 4).map((el) => ({ kind: el.dataset.kind, box: boxOf(el), text: read(el) }));

  // every transition at its end; one that ends may begin another
  const still = () => {
    for (let round = 0; round < 3; round++)
      for (const one of document.getAnimations()) { try { one.finish(); } catch { one.cancel(); } }
    return Math.round(scrollY);
  };

  return {
    things, still, own: () => !!window.app, screen, caret,
    open: () => [...dropdowns(), ...modals(), ...others()],
    value: (ref) => seen[ref].value,
    // where something that is dragged could be let go: the middles of the other lanes
    lanes: (ref) => [...document.querySelectorAll("[data-lane]")].filter((el) => !el.contains(seen[ref]))
      .map((el) => { const r = el.getBoundingClientRect(); return [Math.round((r.left + r.right) / 2), Math.round(Math.min(r.bottom - 30, r.top + 150))]; }),
    height: () => document.documentElement.scrollHeight,
    top: () => Math.round(scrollY),
    scroll: (y) => { scrollTo({ top: y, behavior: "instant" }); return Math.round(scrollY); },
    next: () => (window.app ? window.app.next() : null),
    pending: () => (window.app ? window.app.pending() : null),
    ends: () => !!document.querySelector("[data-view]:not([hidden]) [data-countdown][data-then]"),
    pass: (ms) => { if (window.app) window.app.pass(ms); },
  };
})()
