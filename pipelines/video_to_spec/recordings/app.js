// How a generated app behaves. Nothing here looks at a clock: time passes when `app.pass(ms)` says so.
window.app = (() => {
  const $ = (query, root = document) => root.querySelector(query);
  const all = (query, root = document) => [...root.querySelectorAll(query)];
  const boxOf = (el) => { const r = el.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
  let now = 0, count = 0;
  let timers = [];

  // `el` and `key`: only this element changes, and looks the same whenever the key is the same; `alone` is no reaction
  const later = (ms, run, { el = null, key = null, alone = false } = {}) => {
    const timer = { at: now + ms, order: count++, run, el, key, alone };
    timers.push(timer);
    return timer;
  };
  const stop = (timer) => { timers = timers.filter((t) => t !== timer); };
  const due = () => timers.reduce((a, b) => (!a || b.at < a.at || (b.at === a.at && b.order < a.order) ? b : a), null);
  const next = () => {
    const timer = due();
    if (!timer) return null;
    const el = timer.el && timer.el.isConnected && timer.el.getBoundingClientRect().height > 0 ? timer.el : null;
    return { ms: timer.at - now, box: el ? boxOf(el) : null, key: timer.key, alone: timer.alone, hidden: !!timer.el && !el };
  };
  // how long the reaction to what was done last goes on, or null
  const pending = () => { const own = timers.filter((t) => !t.alone); return own.length ? Math.max(...own.map((t) => t.at)) - now : null; };
  const pass = (ms) => {
    const end = now + ms;
    for (let timer = due(); timer && timer.at <= end + 1e-6; timer = due()) { now = timer.at; stop(timer); timer.run(); }
    now = end;
  };

  // ---- things that move by themselves
  const spin = (el) => {
    let k = 0;
    const turn = () => {
      if (!el.isConnected) return;
      k = (k + 1) % 12;
      el.style.transform = `rotate(${k * 30}deg)`;
      later(80, turn, { el: el.parentElement, key: `spin${(k + 1) % 12}`, alone: true });
    };
    later(80, turn, { el: el.parentElement, key: "spin1", alone: true });
  };
  const clock = (text) => `${Math.floor(text / 60)}:${String(text % 60).padStart(2, "0")}`;
  const tick = (el, step, done) => {
    let left = Number(el.dataset.from);
    el.textContent = clock(left);
    const go = () => {
      left += step;
      el.textContent = clock(left);
      if (left <= 0 && step < 0) { if (done) done(); return; }
      later(1000, go, last() ? { alone: true } : { el, alone: true });
    };
    // what changes the whole page is no change of this element alone
    const last = () => done && left + step <= 0;
    later(1000, go, { el, alone: true });
  };
  const draw = (el) => {
    const bars = all("[data-bar]", el);
    let k = 0;
    const grow = () => {
      k++;
      bars.forEach((bar) => { bar.style.height = `${Number(bar.dataset.bar) * (1 - (1 - k / 12) ** 3)}%`; });
      if (k < 12) later(66, grow, { el, alone: true });
    };
    bars.forEach((bar) => { bar.style.height = "0"; });
    later(120, grow, { el, alone: true });
  };
  const begin = (root) => {
    all("[data-spin]", root).forEach(spin);
    all("[data-draw]", root).forEach(draw);
    all("[data-countdown]", root).forEach((el) => tick(el, -1, el.dataset.then && (() => show(el.dataset.then))));
    all("[data-clock]", root).forEach((el) => tick(el, 1));
  };

  // ---- views
  const show = (name) => {
    all("[data-view]").forEach((view) => { view.hidden = view.dataset.view !== name; });
    all("nav [data-go]").forEach((link) => link.classList.toggle("w-on", link.dataset.go === name));
    document.body.dataset.screen = name;
    closeMenus();
    scrollTo({ top: 0, behavior: "instant" });
    const view = $(`[data-view="${name}"]`);
    timers = timers.filter((t) => !t.el || !t.el.isConnected || t.el.getBoundingClientRect().height > 0);
    begin(view);
  };
  const go = (link) => {
    const wait = Number(link.dataset.wait || 0);
    if (!wait) return show(link.dataset.go);
    show(link.dataset.go);
    const view = $(`[data-view="${link.dataset.go}"]`);
    const cover = document.createElement("div");
    cover.className = "w-cover-all";
    cover.innerHTML = '<span><i class="w-spin" data-spin></i></span>';
    view.append(cover);
    spin($("i", cover));
    later(wait, () => cover.remove());
  };
  const closeMenus = () => { all("[role=menu]").forEach((menu) => { menu.hidden = true; }); all("[data-kind=popover]").forEach((pop) => { pop.hidden = true; }); };
  const closeModals = () => all("[role=dialog]").forEach((dialog) => { dialog.hidden = true; dialog.parentElement.classList.remove("w-dim"); });
  const openModal = (id) => {
    const dialog = document.getElementById(id);
    dialog.hidden = false;
    if (dialog.dataset.dim) dialog.parentElement.classList.add("w-dim");
    const field = $("input", dialog);
    if (field && dialog.dataset.focus) field.focus();
  };
  const toast = (text, ms) => {
    const note = document.createElement("div");
    note.className = "w-toast";
    note.dataset.kind = "toast";
    note.textContent = text;
    $("#toasts").append(note);
    later(ms, () => note.remove(), { alone: true });
  };

  // ---- forms
  const complain = (field, text) => {
    let note = field.parentElement.querySelector(".w-fault");
    if (!note) { note = document.createElement("small"); note.className = "w-fault"; field.after(note); }
    note.dataset.kind = text.includes("required") ? "required field" : "inline validation";
    note.textContent = text;
    note.hidden = !text;
    field.style.borderColor = text ? "#d33" : "";
  };
  const faulty = (form) => {
    let bad = 0;
    for (const field of all("input,textarea", form)) {
      const text = field.required && !field.value ? "This field is required" : field.type === "email" && field.value && !field.value.includes("@") ? "Enter a valid email address" : "";
      complain(field, text);
      bad += text ? 1 : 0;
    }
    return bad > 0;
  };
  const done = (button) => {
    const after = button.dataset;
    if (after.say) toast(after.say, Number(after.ms || 2500));
    if (after.then) show(after.then);
    if (after.clear !== undefined) closeModals();
  };
  const busy = (button) => {
    const wait = Number(button.dataset.busy || 0);
    const before = button.innerHTML;
    if (!wait) return done(button);
    button.style.minWidth = `${button.offsetWidth}px`;
    button.innerHTML = `<span><i class="w-spin w-little" data-spin></i></span> ${button.dataset.during || "Saving…"}`;
    button.disabled = true;
    button.dataset.kind = "busy state";
    spin($("i", button));
    later(wait, () => {
      button.disabled = false;
      delete button.dataset.kind;
      button.innerHTML = button.dataset.after || before;
      if (button.dataset.vanish !== undefined) button.remove();
      done(button);
    });
  };
  let saving = null;
  const autosave = (field) => {
    const note = field.closest("[data-autosave]").querySelector(".w-saved");
    note.hidden = true;
    if (saving) stop(saving);
    saving = later(700, () => { note.hidden = false; later(2200, () => { note.hidden = true; }, { alone: true }); }, { alone: true });
  };

  // ---- what the user does
  const acts = {
    go: (el) => go(el),
    menu: (el) => { const menu = document.getElementById(el.dataset.menu); const was = menu.hidden; closeMenus(); menu.hidden = !was; },
    item: (el) => { const label = document.getElementById(el.dataset.item); if (label) label.textContent = el.textContent; closeMenus(); },
    modal: (el) => openModal(el.dataset.modal),
    close: () => closeModals(),
    tab: (el) => {
      const group = el.closest("[data-tabs]");
      all("[data-tab]", group).forEach((tab) => tab.classList.toggle("w-on", tab === el));
      all("[data-panel]", group).forEach((panel) => { panel.hidden = panel.dataset.panel !== el.dataset.tab; });
    },
    page: (el) => {
      const group = el.closest("[data-paged]");
      all("[data-page]", group).forEach((link) => link.classList.toggle("w-on", link === el));
      all("[data-rows]", group).forEach((rows) => { rows.hidden = rows.dataset.rows !== el.dataset.page; });
    },
    theme: () => document.documentElement.classList.toggle("w-night"),
    pop: (el) => { const pop = document.getElementById(el.dataset.pop); const was = pop.hidden; closeMenus(); pop.hidden = !was; },
    toast: (el) => toast(el.dataset.toast, Number(el.dataset.ms || 2500)),
    busy: (el) => busy(el),
    split: (el) => { const pair = document.getElementById(el.dataset.split); el.hidden = true; pair.hidden = false; },
    submit: (el) => { if (!faulty(el.closest("form"))) busy(el); },
  };
  document.addEventListener("click", (event) => {
    const el = event.target.closest("[data-menu],[data-item],[data-modal],[data-close],[data-tab],[data-page],button[data-theme],[data-pop],[data-toast],[data-split],[data-submit],[data-busy],[data-go]");
    if (el && el.dataset) event.preventDefault();
    if (!el) { if (!event.target.closest("[role=menu],[data-kind=popover]")) closeMenus(); return; }
    for (const name of Object.keys(acts)) if (name in el.dataset && (name !== "busy" || !("submit" in el.dataset))) return acts[name](el);
  });
  document.addEventListener("submit", (event) => event.preventDefault());
  document.addEventListener("input", (event) => { if (event.target.closest("[data-autosave]")) autosave(event.target); });
  document.addEventListener("mouseover", (event) => {
    const el = event.target.closest("[data-tip]");
    all(".w-tip").forEach((tip) => tip.remove());
    if (!el) return;
    const tip = document.createElement("div");
    tip.className = "w-tip";
    tip.dataset.kind = "popover";
    tip.textContent = el.dataset.tip;
    document.body.append(tip);
    const r = el.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(innerWidth - 8 - tip.offsetWidth, r.left))}px`;
    tip.style.top = `${r.bottom + 8 + tip.offsetHeight > innerHeight ? r.top - 8 - tip.offsetHeight : r.bottom + 8}px`;
  });
  // ---- cards that are dragged from lane to lane
  let held = null;
  document.addEventListener("mousedown", (event) => {
    const card = event.target.closest("[data-card]");
    if (!card) return;
    event.preventDefault();
    held = { card, x: event.clientX, y: event.clientY };
  });
  document.addEventListener("mousemove", (event) => {
    if (!held) return;
    held.card.classList.add("w-held");
    held.card.style.transform = `translate(${event.clientX - held.x}px,${event.clientY - held.y}px) rotate(2deg)`;
  });
  document.addEventListener("mouseup", (event) => {
    if (!held) return;
    const { card } = held;
    held = null;
    const over = document.elementsFromPoint(event.clientX, event.clientY).filter((el) => !card.contains(el)).map((el) => el.closest("[data-lane]")).find((el) => el);
    card.classList.remove("w-held");
    card.style.transform = "";
    if (over && over !== card.parentElement) over.append(card);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { closeModals(); closeMenus(); }
    if (event.key === "k" && event.ctrlKey && document.getElementById("palette")) { event.preventDefault(); openModal("palette"); }
    if (event.key === "Enter" && event.target.closest("form")) {
      event.preventDefault();
      const button = $("[data-submit]", event.target.closest("form"));
      if (button) button.click();
    }
  });
  return { next, pass, pending, show, begin };
})();
