/* Reads what a rendered page shows inside its viewport. Evaluates to {settle, walk}.
   The record it returns is described in walker.py. Works from outside the page too (a parent frame passes the
   frame's document), so nothing here may use the global document or window. */
(() => {
  const SKIP = new Set(["SCRIPT", "STYLE", "TEMPLATE", "HEAD", "META", "LINK", "TITLE", "BR", "WBR", "OPTION", "OPTGROUP",
    "DATALIST", "PARAM", "SOURCE", "TRACK", "AREA", "NOSCRIPT"]);
  const REPLACED = { IMG: "img", SVG: "svg", CANVAS: "canvas", VIDEO: "video", OBJECT: "object", EMBED: "object",
    IFRAME: "frame", FRAME: "frame" };
  const TYPED = new Set(["text", "search", "email", "url", "tel", "password", "number", "date", "datetime-local", "month",
    "time", "week"]);
  const PRESSED = new Set(["submit", "button", "reset"]);
  const PRIVATE = /[\uE000-\uF8FF]|[\u{F0000}-\u{10FFFD}]/gu;
  const EMOJI = /[\p{Emoji_Presentation}\u{1F1E6}-\u{1F1FF}\uFE0F]/gu;

  const round = (v) => Math.round(v * 10) / 10;
  const boxOf = (r) => [round(r[0]), round(r[1]), round(r[2]), round(r[3])];
  const meet = (a, b) => [Math.max(a[0], b[0]), Math.max(a[1], b[1]), Math.min(a[2], b[2]), Math.min(a[3], b[3])];
  const filled = (b) => b[2] - b[0] > 0.5 && b[3] - b[1] > 0.5;

  let pixel = null; // a canvas of one pixel, to read colours in notations other than rgb()
  const seenColors = new Map();

  function color(text, opacity) {
    const m = /^rgba?\(([^)]+)\)/.exec(text);
    if (m) {
      const v = m[1].split(/[\s,/]+/).filter(Boolean).map(Number);
      return [Math.round(v[0]), Math.round(v[1]), Math.round(v[2]), round4((v.length > 3 ? v[3] : 1) * opacity)];
    }
    if (!text || !pixel) return null;
    if (!seenColors.has(text)) {
      pixel.clearRect(0, 0, 1, 1);
      pixel.fillStyle = "#000";
      pixel.fillStyle = text;
      pixel.fillRect(0, 0, 1, 1);
      const d = pixel.getImageData(0, 0, 1, 1).data;
      seenColors.set(text, [d[0], d[1], d[2], d[3] / 255]);
    }
    const v = seenColors.get(text);
    return [v[0], v[1], v[2], round4(v[3] * opacity)];
  }
  const round4 = (v) => Math.round(v * 1e4) / 1e4;

  function gradientColor(image, opacity) {
    const found = image.match(/(?:rgba?|color|oklch|oklab|lab|lch)\([^()]+\)/g);
    if (!found) return null;
    const all = found.map((c) => color(c, opacity)).filter(Boolean);
    return all.length ? [0, 1, 2].map((k) => Math.round(all.reduce((s, c) => s + c[k], 0) / all.length))
      .concat(all.reduce((s, c) => s + c[3], 0) / all.length) : null;
  }

  function family(list, loaded) {
    for (const part of list.split(",")) {
      const name = part.trim().replace(/^["']|["']$/g, "").toLowerCase();
      if (/mono|courier|consol|menlo|typewriter|code/.test(name)) return "mono";
      if (name === "sans-serif" || name === "system-ui" || name === "ui-sans-serif") return "sans";
      if (name === "serif" || name === "ui-serif" || /georgia|times|garamond|merriweather|playfair|palatino|baskerville|cambria|\bserif\b|slab|lora\b|bitter/.test(name)
        && !/sans/.test(name)) return "serif";
      if (/arial|helvetica|verdana|tahoma|trebuchet|segoe|liberation sans|dejavu sans|roboto|inter\b|open sans|lato|noto sans/.test(name)) return "sans";
      if (loaded.has(name)) return "sans";
    }
    return "serif"; // what the browser falls back to when nothing of the list is there
  }

  const clipsToText = (cs) => (cs.webkitBackgroundClip || cs.backgroundClip || "").includes("text");

  function transform(text, how) {
    if (how === "uppercase") return text.toUpperCase();
    if (how === "lowercase") return text.toLowerCase();
    if (how === "capitalize") return text.replace(/(^|[\s\-(\["'])(\p{L})/gu, (_, a, b) => a + b.toUpperCase());
    return text;
  }

  /* Stop what moves: animations jump to their end, endless ones are dropped, videos stand still. */
  async function settle(doc, scrollY, ms) {
    const win = doc.defaultView;
    const wait = (t) => new Promise((done) => setTimeout(done, t));
    if (doc.fonts) await Promise.race([doc.fonts.ready, wait(3000)]);
    if (scrollY) (doc.scrollingElement || doc.documentElement).scrollTo({ top: scrollY, behavior: "instant" });
    const stop = () => {
      for (const a of doc.getAnimations ? doc.getAnimations() : []) {
        try { a.finish(); } catch (e) { try { a.cancel(); } catch (e2) { /* already gone */ } }
      }
    };
    stop();
    if (ms) await wait(ms);
    stop();
    if (doc.activeElement && doc.activeElement !== doc.body && doc.activeElement.blur) doc.activeElement.blur();
    if (scrollY && win) (doc.scrollingElement || doc.documentElement).scrollTo({ top: scrollY, behavior: "instant" });
    return true;
  }

  function walk(doc, limit) {
    const elements = [];
    const texts = [];
    const most = limit || 20000;
    let cut = false;
    const rootWin = doc.defaultView;
    const W = rootWin.innerWidth, H = rootWin.innerHeight;
    const view = [0, 0, W, H];
    const spot = doc.createElement("canvas");
    spot.width = spot.height = 1;
    pixel = spot.getContext("2d", { willReadFrequently: true });

    function document_(d, dx, dy, clip, parent) {
      const win = d.defaultView;
      if (!win || !d.documentElement) return false;
      const loaded = new Set();
      if (d.fonts) d.fonts.forEach((f) => { if (f.status === "loaded") loaded.add(f.family.replace(/^["']|["']$/g, "").toLowerCase()); });
      const pen = d.createElement("canvas").getContext("2d");
      const range = d.createRange();
      const rectOf = (el) => { const r = el.getBoundingClientRect(); return [r.left + dx, r.top + dy, r.right + dx, r.bottom + dy]; };
      const outside = (r) => r[2] <= clip[0] || r[0] >= clip[2] || r[3] <= clip[1] || r[1] >= clip[3];

      function reaches(el) { // does anything below an element that lies outside reach into the view?
        const all = el.getElementsByTagName("*");
        for (let i = 0; i < all.length; i++) {
          const r = rectOf(all[i]);
          if (r[2] - r[0] > 0 && r[3] - r[1] > 0 && !outside(r)) return true;
          if (all[i].shadowRoot) return true;
        }
        return el.shadowRoot !== null && el.shadowRoot !== undefined;
      }

      /* An element's own text is hidden when something opaque that is no relative of it lies on top. */
      function covered(el, x, y) {
        const px = x - dx, py = y - dy;
        if (px < 0 || py < 0 || px >= win.innerWidth || py >= win.innerHeight) return false;
        const top = d.elementFromPoint(px, py);
        if (!top || top === el || top.contains(el) || el.contains(top)) return false;
        if (el.getRootNode() !== d) return false; // inside a shadow root: the hit test stops at its host
        if (win.getComputedStyle(el).pointerEvents === "none") return false; // the hit test does not see it
        for (const hit of d.elementsFromPoint(px, py)) {
          if (hit === el || hit.contains(el) || el.contains(hit)) return false;
          const tag = hit.tagName.toUpperCase();
          if (tag === "IMG" || tag === "VIDEO" || tag === "CANVAS" || tag === "IFRAME") return true;
          const cs = win.getComputedStyle(hit);
          const bg = color(cs.backgroundColor, 1);
          if (bg && bg[3] >= 0.9 && Number(cs.opacity) >= 0.9) return true;
        }
        return false;
      }

      function add(e, el, text, r, clipTo, extra) {
        const seen = meet(r, clipTo);
        if (seen[2] - seen[0] < 2 || seen[3] - seen[1] < 2) return false;
        if (seen[3] - seen[1] < 0.5 * (r[3] - r[1])) return false; // half a line is hard to read
        if (covered(el, (seen[0] + seen[2]) / 2, (seen[1] + seen[3]) / 2)) return false;
        const record = { e, text, box: boxOf(seen) };
        if (r[2] - seen[2] > 1 || seen[0] - r[0] > 1 || seen[3] - seen[1] < 0.95 * (r[3] - r[1])) { record.cut = 1; record.full = boxOf(r); }
        texts.push(Object.assign(record, extra));
        return true;
      }

      /* The letters of node[a:b] that a sideways clip leaves, and the dots that stand for the rest. */
      function visiblePart(node, el, a, b, clipTo, size) {
        let dots = false;
        for (let p = el, k = 0; p && k < 4 && !dots; p = p.parentElement, k++) {
          const cs = win.getComputedStyle(p);
          dots = cs.textOverflow === "ellipsis" && cs.overflowX !== "visible";
        }
        const right = clipTo[2] - (dots ? 0.8 * size : 0);
        let first = -1, last = -1;
        for (let k = a; k < b; k++) {
          range.setStart(node, k); range.setEnd(node, k + 1);
          const r = range.getBoundingClientRect();
          const middle = (r.left + r.right) / 2 + dx;
          if (r.width === 0 || middle < clipTo[0]) continue;
          if (middle > right) { if (first >= 0) break; else continue; }
          if (first < 0) first = k;
          last = k + 1;
        }
        if (first < 0) return "";
        return node.data.slice(first, last) + (dots && last < b ? "\u2026" : "");
      }

      function textNode(node, el, e, cs, clipTo) {
        const data = node.data;
        if (!/\S/.test(data)) return false;
        range.selectNodeContents(node);
        const rects = range.getClientRects();
        if (!rects.length) return false;
        let all = null;
        for (const r of rects) {
          const b = [r.left + dx, r.top + dy, r.right + dx, r.bottom + dy];
          if (b[2] <= b[0]) continue;
          all = all ? [Math.min(all[0], b[0]), Math.min(all[1], b[1]), Math.max(all[2], b[2]), Math.max(all[3], b[3])] : b;
        }
        if (!all || !filled(meet(all, clipTo))) return false;
        const ink = elements[e].color; // with the opacity of everything around it
        if (ink && ink[3] < 0.15) return false; // transparent: nobody can read it
        const size = parseFloat(cs.fontSize) || 16;
        const pre = cs.whiteSpace.startsWith("pre") || cs.whiteSpace === "break-spaces";
        const put = (a, b, r) => {
          if (r[2] - r[0] < 1 || !filled(meet(r, clipTo))) return false;
          const whole = r[2] <= clipTo[2] + 2 && r[0] >= clipTo[0] - 2;
          const raw = whole ? data.slice(a, b) : visiblePart(node, el, a, b, clipTo, size);
          if (!raw.trim()) return false;
          const plain = raw.replace(PRIVATE, "").replace(EMOJI, "").replace(/[\s\u00A0\u200B-\u200D\uFEFF\u00AD]+/g, " ").trim();
          const narrow = r[2] - r[0] <= 1.3 * size;
          const ligature = narrow && /^[a-z][a-z0-9_]{3,}$/.test(plain) && /icon|symbol|glyph/i.test(cs.fontFamily);
          if (!plain || ligature) return add(e, el, "", r, clipTo, { icon: 1 });
          return add(e, el, transform(plain, cs.textTransform), r, clipTo);
        };
        if (rects.length === 1 && !(pre && /\s{3}|\t/.test(data.trim()))) {
          const first = data.search(/\S/), last = data.trimEnd().length;
          if (first > 0 || last < data.length) { // a space at either end takes up room that is no ink
            range.setStart(node, first); range.setEnd(node, last);
            const r = range.getBoundingClientRect();
            if (r.width > 0) all = [r.left + dx, r.top + dy, r.right + dx, r.bottom + dy];
          }
          return put(first, last, all);
        }
        let any = false, from = -1, to = -1, box = null;
        const flush = () => { if (box) any = put(from, to, box) || any; box = null; };
        const take = (a, b, r) => {
          if (box) {
            const height = Math.min(r[3] - r[1], box[3] - box[1]);
            const sameLine = Math.min(r[3], box[3]) - Math.max(r[1], box[1]) > 0.5 * height;
            if (!sameLine || r[0] < box[2] - size || r[0] - box[2] > 1.5 * size) flush();
          }
          if (!box) { box = r; from = a; to = b; } else {
            box = [Math.min(box[0], r[0]), Math.min(box[1], r[1]), Math.max(box[2], r[2]), Math.max(box[3], r[3])]; to = b;
          }
        };
        const words = /[^\s]+/g;
        let m;
        while ((m = words.exec(data))) {
          const a = m.index, b = a + m[0].length;
          range.setStart(node, a); range.setEnd(node, b);
          const parts = Array.from(range.getClientRects()).filter((r) => r.width > 0);
          if (!parts.length) continue;
          const top = Math.min(...parts.map((r) => r.top)) + dy;
          if (top > H + 100 && cs.columnCount === "auto" && cs.writingMode === "horizontal-tb") break;
          if (parts.every((r) => Math.abs(r.top - parts[0].top) < 2)) {
            take(a, b, [Math.min(...parts.map((r) => r.left)) + dx, Math.min(...parts.map((r) => r.top)) + dy,
              Math.max(...parts.map((r) => r.right)) + dx, Math.max(...parts.map((r) => r.bottom)) + dy]);
          } else { // a word broken across lines
            for (let k = a; k < b; k++) {
              range.setStart(node, k); range.setEnd(node, k + 1);
              const r = range.getClientRects()[0];
              if (r && r.width > 0) take(k, k + 1, [r.left + dx, r.top + dy, r.right + dx, r.bottom + dy]);
            }
          }
        }
        flush();
        return any;
      }

      /* Text of a form control has no node to ask: its place follows from padding, alignment and font. */
      function controlText(el, e, cs, r, clipTo, tag, type) {
        let text = "", extra = { field: 1 };
        const size = parseFloat(cs.fontSize) || 16;
        if (tag === "SELECT") {
          const chosen = el.selectedOptions && el.selectedOptions[0];
          if (el.multiple || el.size > 1) {
            for (const o of el.options) {
              const b = rectOf(o);
              if (b[2] > b[0]) line(o.text, b[0] + 2, (b[1] + b[3]) / 2, meet(clipTo, r));
            }
            return;
          }
          text = chosen ? chosen.text : "";
        } else if (tag === "TEXTAREA" || TYPED.has(type)) {
          text = el.value;
          if (type === "password") text = "\u2022".repeat(Math.min(text.length, 20));
          if (!text && el.placeholder) {
            const faint = win.getComputedStyle(el, "::placeholder");
            const ink = color(faint.color, Number(faint.opacity || 1));
            if (ink && ink[3] < 0.15) return; // a floating label stands in its place
            text = el.placeholder;
            extra.placeholder = 1;
            if (ink) extra.color = ink;
          }
        } else if (PRESSED.has(type)) {
          text = el.value || (type === "submit" ? "Submit" : type === "reset" ? "Reset" : "");
          extra = {};
        }
        function line(t, x, middle, clipBox, width) {
          t = transform(t.replace(/\s+/g, " ").trim(), cs.textTransform);
          if (!t) return;
          const w = width || measure(t);
          add(e, el, t, [x, middle - size * 0.56, x + w, middle + size * 0.56], clipBox, extra);
        }
        function measure(t) {
          pen.font = `${cs.fontStyle} ${cs.fontWeight} ${cs.fontSize} ${cs.fontFamily}`;
          return pen.measureText(t).width + (parseFloat(cs.letterSpacing) || 0) * t.length;
        }
        if (!text.trim()) return;
        const px = (name) => parseFloat(cs[name]) || 0;
        const x0 = r[0] + px("borderLeftWidth") + px("paddingLeft") + (tag === "SELECT" ? 4 * (cs.appearance === "none" ? 0 : 1) : 0);
        const x1 = r[2] - px("borderRightWidth") - px("paddingRight");
        const y0 = r[1] + px("borderTopWidth") + px("paddingTop"), y1 = r[3] - px("borderBottomWidth") - px("paddingBottom");
        const inner = meet(clipTo, [r[0] + px("borderLeftWidth"), r[1], Math.max(x1, x0), r[3]]);
        if (tag === "TEXTAREA") {
          const step = parseFloat(cs.lineHeight) || size * 1.2;
          let y = y0;
          for (const row of text.split("\n")) {
            let current = "";
            for (const word of row.split(/\s+/)) {
              const next = current ? current + " " + word : word;
              if (current && measure(next) > x1 - x0) { line(current, x0, y + step / 2, inner); y += step; current = word; } else current = next;
            }
            line(current, x0, y + step / 2, inner); y += step;
            if (y > r[3]) break;
          }
          return;
        }
        const w = measure(text.replace(/\s+/g, " ").trim());
        const align = PRESSED.has(type) ? "center" : cs.textAlign;
        let x = x0;
        if (align === "center") x = Math.max((x0 + x1 - w) / 2, x0);
        else if (align === "right" || (align === "end" && cs.direction === "ltr") || (align === "start" && cs.direction === "rtl")) x = Math.max(x1 - w, x0);
        line(text, x, (y0 + y1) / 2, inner, w);
      }

      function pseudo(el, cs) { // a glyph drawn by ::before or ::after, as icon fonts do
        for (const which of ["::before", "::after"]) {
          const p = win.getComputedStyle(el, which);
          const content = p.content;
          if (!content || content === "none" || content === "normal" || p.display === "none") continue;
          const m = /^"(.*)"$/.exec(content);
          if (m && m[1].length && m[1].replace(PRIVATE, "").trim() === "" && m[1].trim() !== "") return parseFloat(p.fontSize) || 16;
        }
        return 0;
      }

      function visit(el, parent, st) {
        const tag = el.tagName.toUpperCase();
        if (SKIP.has(tag)) return false;
        if (elements.length >= most) { cut = true; return false; }
        const r = rectOf(el);
        const big = r[2] - r[0] > 0 && r[3] - r[1] > 0;
        if (big && outside(r) && !st.forced) {
          if (!reaches(el)) return false;
          st = Object.assign({}, st, { forced: true });
        }
        const cs = win.getComputedStyle(el);
        if (cs.display === "none" || cs.contentVisibility === "hidden") return false;
        const opacity = st.opacity * Number(cs.opacity);
        if (opacity < 0.05) return false;
        const pos = cs.position;
        const moved = cs.transform !== "none" || cs.filter !== "none" || cs.perspective !== "none";
        let base = pos === "fixed" ? st.fixed : pos === "absolute" ? st.abs : st.flow;
        if (pos === "absolute" && cs.clip && cs.clip !== "auto") {
          const v = (cs.clip.match(/-?[\d.]+px|auto/g) || []).map((t) => (t === "auto" ? null : parseFloat(t)));
          if (v.length === 4) base = meet(base, [v[3] === null ? r[0] : r[0] + v[3], v[0] === null ? r[1] : r[1] + v[0],
            v[1] === null ? r[2] : r[0] + v[1], v[2] === null ? r[3] : r[1] + v[2]]);
        }
        if (/^inset\((50|100)%/.test(cs.clipPath)) return false;
        const isRoot = el === d.documentElement || el === d.body;
        let inner = base;
        if (!isRoot && cs.display !== "inline" && cs.display !== "contents" && (cs.overflowX !== "visible" || cs.overflowY !== "visible")) {
          const l = parseFloat(cs.borderLeftWidth) || 0, t = parseFloat(cs.borderTopWidth) || 0;
          const rr = parseFloat(cs.borderRightWidth) || 0, b = parseFloat(cs.borderBottomWidth) || 0;
          inner = meet(base, [cs.overflowX === "visible" ? -1e6 : r[0] + l, cs.overflowY === "visible" ? -1e6 : r[1] + t,
            cs.overflowX === "visible" ? 1e6 : r[2] - rr, cs.overflowY === "visible" ? 1e6 : r[3] - b]);
        }
        const positioned = pos !== "static" || moved;
        const next = { flow: inner, abs: positioned || isRoot ? inner : st.abs, fixed: moved ? inner : st.fixed, opacity, forced: st.forced };
        const clipped = meet(r, base);
        const shown = filled(clipped) && cs.visibility === "visible";
        const i = elements.length;
        const rec = { i, p: parent, tag: tag.toLowerCase(), box: boxOf(r), vis: shown ? boxOf(clipped) : null };
        elements.push(rec);
        const mark = texts.length;
        fill(rec, el, tag, cs, opacity, shown, loaded);
        let any = false;
        const replaced = REPLACED[tag];
        const type = (rec.type || "").toLowerCase();
        if (replaced) {
          if (tag === "IFRAME" || tag === "FRAME") {
            let inside = null;
            try { inside = el.contentDocument; } catch (e) { inside = null; }
            if (inside && inside.body && shown) {
              const ox = r[0] + (parseFloat(cs.borderLeftWidth) || 0) + (parseFloat(cs.paddingLeft) || 0);
              const oy = r[1] + (parseFloat(cs.borderTopWidth) || 0) + (parseFloat(cs.paddingTop) || 0);
              if (document_(inside, ox, oy, meet(base, r), i)) rec.pic = undefined;
            }
          }
        } else if (tag === "INPUT" || tag === "SELECT" || tag === "TEXTAREA") {
          if (shown) controlText(el, i, cs, r, base, tag, tag === "INPUT" ? type || "text" : type);
        } else {
          const source = el.shadowRoot || (tag === "SLOT" && el.assignedNodes && el.assignedNodes().length ? null : el);
          const nodes = source ? source.childNodes : el.assignedNodes();
          const closed = tag === "DETAILS" && !el.open;
          for (const node of nodes) {
            if (node.nodeType === 1) {
              if (closed && node.tagName.toUpperCase() !== "SUMMARY") continue;
              any = visit(node, i, next) || any;
            } else if (node.nodeType === 3 && cs.visibility === "visible" && !closed) {
              any = textNode(node, el, i, cs, cs.display === "inline" || cs.display === "contents" ? base : inner) || any;
            }
          }
          if (!any && shown) {
            const size = pseudo(el, cs);
            if (size && r[2] - r[0] <= 4 * size) rec.pic = "icon";
          }
        }
        if (texts.length > mark) any = true;
        // nothing to see and nothing inside: keep no record
        if (!any && !isRoot && !(shown && (rec.pic || paints(rec)))) { elements.length = i; return false; }
        return true;
      }

      const paints = (rec) => rec.bg || rec.bgi || rec.bw || rec.shadow || rec.tag === "hr" || rec.tag === "input"
        || rec.tag === "select" || rec.tag === "textarea" || rec.tag === "button" || rec.tag === "progress" || rec.tag === "meter";

      return visit(d.documentElement, parent, { flow: clip, abs: clip, fixed: clip, opacity: 1, forced: false });
    }

    function fill(rec, el, tag, cs, opacity, shown, loaded) {
      const attr = (name) => el.getAttribute && el.getAttribute(name);
      for (const name of ["role", "type", "href", "alt", "placeholder", "id"]) {
        const v = attr(name);
        if (v !== null && v !== undefined && v !== "") rec[name] = String(v).slice(0, 200);
      }
      const label = attr("aria-label") || attr("title");
      if (label) rec.label = label.slice(0, 200);
      if (el.className && typeof el.className === "string") rec.cls = el.className.slice(0, 120);
      if ((tag === "INPUT") && (el.checked)) rec.checked = 1;
      if (tag === "INPUT") rec.type = el.type;
      rec.disp = cs.display;
      if (cs.position !== "static") rec.pos = cs.position;
      if (cs.float !== "none") rec.float = cs.float;
      const onText = clipsToText(cs);
      rec.color = (onText && gradientColor(cs.backgroundImage, opacity)) || color(cs.webkitTextFillColor || cs.color, opacity);
      rec.fs = round(parseFloat(cs.fontSize) || 16);
      rec.fw = Number(cs.fontWeight) || 400;
      rec.ff = family(cs.fontFamily, loaded);
      rec.ta = cs.textAlign;
      if (cs.direction === "rtl") rec.rtl = 1;
      if (cs.fontStyle !== "normal") rec.it = 1;
      if (cs.textDecorationLine.includes("underline")) rec.ul = 1;
      if (REPLACED[tag]) rec.pic = REPLACED[tag];
      if (tag === "INPUT" && el.type === "image") rec.pic = "img";
      // the page's own background covers the view, however small the element is that carries it
      if (!shown && tag !== "HTML" && tag !== "BODY") return;
      const bg = color(cs.backgroundColor, opacity);
      if (bg && bg[3] > 0.02 && !onText) rec.bg = bg;
      const image = onText ? "none" : cs.backgroundImage;
      if (image && image !== "none") {
        if (/url\(/.test(image)) rec.bgi = "url";
        else if (/gradient\(/.test(image)) {
          const mean = gradientColor(image, opacity);
          if (mean && mean[3] > 0.02) { rec.bgi = "gradient"; rec.bg = mean; }
        }
      }
      const widths = ["Top", "Right", "Bottom", "Left"].map((s) =>
        (cs[`border${s}Style`] === "none" || cs[`border${s}Style`] === "hidden" ? 0 : round(parseFloat(cs[`border${s}Width`]) || 0)));
      if (widths.some((w) => w > 0)) {
        const seen = ["Top", "Right", "Bottom", "Left"].map((s, k) => (widths[k] ? color(cs[`border${s}Color`], opacity) : null));
        const drawn = widths.map((w, k) => (seen[k] && seen[k][3] > 0.02 ? w : 0));
        if (drawn.some((w) => w > 0)) {
          rec.bw = drawn;
          rec.bc = seen[drawn.indexOf(Math.max(...drawn))];
        }
      } else if (cs.outlineStyle !== "none" && cs.outlineStyle !== "auto" && parseFloat(cs.outlineWidth) > 0) {
        const c = color(cs.outlineColor, opacity), w = round(parseFloat(cs.outlineWidth));
        if (c && c[3] > 0.02) { rec.bw = [w, w, w, w]; rec.bc = c; }
      }
      const radius = parseFloat(cs.borderTopLeftRadius) || 0;
      if (radius) rec.radius = /%/.test(cs.borderTopLeftRadius) ? round(radius / 100 * Math.min(rec.box[2] - rec.box[0], rec.box[3] - rec.box[1])) : round(radius);
      if (cs.boxShadow && cs.boxShadow !== "none") {
        const c = color((cs.boxShadow.match(/rgba?\([^)]+\)/) || [""])[0], opacity);
        if (c && c[3] > 0.02) rec.shadow = 1;
      }
    }

    document_(doc, 0, 0, view, -1);
    const root = doc.scrollingElement || doc.documentElement;
    const bodyStyle = doc.body && rootWin.getComputedStyle(doc.body), htmlStyle = rootWin.getComputedStyle(doc.documentElement);
    let back = color(htmlStyle.backgroundColor, 1);
    if (!back || back[3] < 0.02) back = gradientColor(htmlStyle.backgroundImage, 1);
    if (bodyStyle && (!back || back[3] < 0.02)) back = gradientColor(bodyStyle.backgroundImage, 1);
    if (bodyStyle && (!back || back[3] < 0.02)) back = color(bodyStyle.backgroundColor, 1);
    if (!back || back[3] < 0.02) back = [255, 255, 255, 1];
    return {
      version: 1, width: W, height: H, scroll_x: round(rootWin.scrollX), scroll_y: round(rootWin.scrollY),
      doc_width: Math.max(root.scrollWidth, doc.body ? doc.body.scrollWidth : 0), doc_height: root.scrollHeight,
      background: back.slice(0, 3), title: (doc.title || "").slice(0, 200), lang: doc.documentElement.lang || "",
      truncated: cut, elements, texts,
    };
  }

  return { settle, walk };
})()
