// This script draws the map of the embeddings, and handles the pointer, the keys and the controls beside the map.
"use strict";

(() => {
  const section = document.getElementById("map");
  if (!section) return;

  const REACH = 20; // the largest distance, in CSS pixels, from the pointer to the point that it selects
  const FEW = 12; // the largest number of classes that the legend lists
  const FARTHEST = 40; // the largest zoom
  const data = JSON.parse(document.getElementById("map-data").textContent);
  const points = data.x.length;
  const canvas = section.querySelector("canvas");
  const context = canvas.getContext("2d");
  const card = section.querySelector(".card");
  const legend = section.querySelector(".classes");
  const status = document.getElementById("shown");
  const find = document.getElementById("find");
  const asPictures = document.getElementById("as-pictures");

  const view = { zoom: 1, x: data.width / 2, y: data.height / 2 };
  let coloring = data.colorings[0];
  let chosen = () => true; // whether a point is drawn in full color; other points are dimmed
  let pointed = -1;
  let sheet = null;
  let frame = 0;

  // CSS pixels per unit of the data
  const scale = () => 0.94 * view.zoom * Math.min(canvas.clientWidth / data.width, canvas.clientHeight / data.height);
  const across = (i) => (data.x[i] - view.x) * scale() + canvas.clientWidth / 2;
  const down = (i) => (view.y - data.y[i]) * scale() + canvas.clientHeight / 2;

  // drawing

  function redraw() {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(draw);
  }

  function draw() {
    const ratio = window.devicePixelRatio;
    const [width, height] = [canvas.clientWidth, canvas.clientHeight];
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const css = getComputedStyle(canvas);
    const colors = coloring.colors.map((name) => resolved(name, css));
    const paint = asPictures.checked && sheet && sheet.complete ? drawPicture : drawDot;
    const visible = [];
    for (let i = 0; i < points; i++) {
      const [x, y] = [across(i), down(i)];
      if (x > -50 && y > -50 && x < width + 50 && y < height + 50) visible.push(i);
    }
    for (const lit of [false, true]) {
      context.globalAlpha = lit ? 1 : 0.12;
      for (const i of visible) if (chosen(i) === lit) paint(i, colors[coloring.point_classes[i]]);
    }
    context.globalAlpha = 1;
    if (pointed >= 0) drawPointed(visible, css.getPropertyValue("--ink"), paint, colors);
  }

  function resolved(color, css) {
    const variable = /^var\((.+)\)$/.exec(color);
    return variable ? css.getPropertyValue(variable[1]) : color;
  }

  function drawPointed(visible, ink, paint, colors) {
    const side = reach() + 2;
    context.strokeStyle = ink;
    for (const i of visible) {
      if (coloring.point_classes[i] !== coloring.point_classes[pointed] || coloring.class_names.length <= FEW) continue;
      paint(i, colors[coloring.point_classes[i]]);
      ring(i, side, 1.5);
    }
    paint(pointed, colors[coloring.point_classes[pointed]]);
    ring(pointed, side, 2.5);
  }

  // half the size of a point, in CSS pixels
  function reach() {
    const small = canvas.clientWidth < 500 ? 0.75 : 1;
    return asPictures.checked ? Math.min(33, 9 * small * view.zoom ** 0.6) : Math.min(8, 3 * small * view.zoom ** 0.35);
  }

  function ring(i, half, width) {
    context.lineWidth = width;
    context.beginPath();
    if (asPictures.checked) context.rect(across(i) - half, down(i) - half, 2 * half, 2 * half);
    else context.arc(across(i), down(i), half, 0, 2 * Math.PI);
    context.stroke();
  }

  function drawDot(i, color) {
    context.fillStyle = color;
    context.beginPath();
    context.arc(across(i), down(i), reach(), 0, 2 * Math.PI);
    context.fill();
  }

  function drawPicture(i) {
    const cell = sheet.naturalWidth / data.columns;
    const half = reach();
    const [column, row] = place(data.tile[i]);
    context.drawImage(sheet, column * cell, row * cell, cell, cell, across(i) - half, down(i) - half, 2 * half, 2 * half);
  }

  const place = (tile) => [tile % data.columns, Math.floor(tile / data.columns)];

  // moving

  function zoomBy(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
    const before = scale();
    const zoom = factor === 0 ? 1 : Math.min(FARTHEST, Math.max(1, view.zoom * factor));
    view.zoom = zoom;
    const by = 1 / before - 1 / scale();
    moveTo(view.x + (x - canvas.clientWidth / 2) * by, view.y - (y - canvas.clientHeight / 2) * by);
  }

  function moveTo(x, y) {
    const free = 1 - 1 / view.zoom; // 0 for the whole map, which cannot be moved
    const within = (value, extent) => Math.min((extent * (1 + free)) / 2, Math.max((extent * (1 - free)) / 2, value));
    [view.x, view.y] = [within(x, data.width), within(y, data.height)];
    canvas.style.touchAction = view.zoom > 1 ? "none" : "auto"; // a finger scrolls the page unless it can move the map
    canvas.style.cursor = view.zoom > 1 ? "grab" : "default";
    showCard(-1);
  }

  // pointing

  function nearest(x, y, limit = Math.max(REACH, reach())) {
    let [best, least] = [-1, limit ** 2];
    for (let i = 0; i < points; i++) {
      if (!chosen(i)) continue;
      const distance = (across(i) - x) ** 2 + (down(i) - y) ** 2;
      if (distance < least) [best, least] = [i, distance];
    }
    return best;
  }

  /** Show the picture that is next to the shown one, or to the middle, toward the right (1), the left (-1), or up and down. */
  function showNext(right, up) {
    const [x, y] = pointed < 0 ? [canvas.clientWidth / 2, canvas.clientHeight / 2] : [across(pointed), down(pointed)];
    let [best, least] = [-1, Infinity];
    for (let i = 0; i < points; i++) {
      const [east, north] = [across(i) - x, y - down(i)];
      const ahead = east * right + north * up;
      const aside = Math.abs(east * up) + Math.abs(north * right);
      if (!chosen(i) || i === pointed || ahead <= 0 || aside > ahead) continue;
      if (ahead + aside < least) [best, least] = [i, ahead + aside];
    }
    if (best < 0) return;
    const isInside = 0 <= across(best) && across(best) <= canvas.clientWidth && 0 <= down(best) && down(best) <= canvas.clientHeight;
    if (!isInside) moveTo(data.x[best], data.y[best]);
    showCard(best);
  }

  function showCard(i) {
    pointed = i;
    card.hidden = i < 0;
    redraw();
    if (i < 0) return;
    const [column, row] = place(data.tile[i]);
    const picture = card.querySelector(".tile");
    picture.style.setProperty("--column", column);
    picture.style.setProperty("--row", row);
    const lines = data.colorings.map((each) => each.class_names[each.point_classes[i]]);
    const [hit, name, ...above] = lines.reverse();
    const words = card.querySelector(".words");
    words.replaceChildren(element("strong", name), element("span", above.reverse().join(" › ")));
    words.append(element("span", `Nearest neighbor ${hit}`));
    const [width, height] = [card.offsetWidth, card.offsetHeight];
    const left = across(i) + 16 + width < canvas.clientWidth ? across(i) + 16 : across(i) - 16 - width;
    const top = down(i) + 16 + height < canvas.clientHeight ? down(i) + 16 : down(i) - 16 - height;
    card.style.transform = `translate(${Math.max(4, left)}px, ${Math.max(4, top)}px)`;
  }

  function element(tag, text) {
    const created = document.createElement(tag);
    created.textContent = text;
    return created;
  }

  // controls

  function choose(test, words) {
    chosen = test || (() => true);
    let count = 0;
    for (let i = 0; i < points; i++) count += chosen(i);
    status.textContent = test ? `${words}: ${count.toLocaleString("en")} of ${points.toLocaleString("en")}` : explained();
    showCard(-1);
  }

  function explained() {
    const count = coloring.class_names.length.toLocaleString("en");
    if (coloring.class_names.length <= FEW) return coloring.name;
    const level = coloring.name === "class" ? "" : `${coloring.name} `;
    return `${count} ${level}classes are too many for a legend. Point at a picture to highlight its class.`;
  }

  function listClasses() {
    const few = coloring.class_names.length <= FEW;
    legend.replaceChildren(...(few ? coloring.class_names.map(classButton) : []));
  }

  function findClasses() {
    const text = find.value.trim().toLowerCase();
    const levels = data.colorings.slice(0, -1);
    const matching = levels.map((level) => level.class_names.map((name) => name.toLowerCase().includes(text)));
    choose(text && ((i) => levels.some((level, j) => matching[j][level.point_classes[i]])), `“${find.value.trim()}”`);
  }

  function classButton(name, number) {
    const [button, dot] = [element("button", name), document.createElement("i")];
    button.type = "button";
    button.ariaPressed = "false";
    dot.style.background = coloring.colors[number];
    button.prepend(dot);
    button.addEventListener("click", () => {
      const pressed = button.ariaPressed !== "true";
      release();
      find.value = "";
      button.ariaPressed = String(pressed);
      choose(pressed ? (i) => coloring.point_classes[i] === number : null, name);
    });
    return button;
  }

  function release() {
    for (const button of legend.children) button.ariaPressed = "false";
  }

  find.addEventListener("input", () => {
    release();
    zoomBy(0); // a class that is found may be outside of the view
    findClasses();
  });

  for (const radio of section.querySelectorAll("[name=coloring]")) {
    radio.addEventListener("change", () => {
      coloring = data.colorings[Number(radio.value)];
      listClasses();
      findClasses();
    });
  }

  asPictures.addEventListener("change", () => {
    if (!sheet) {
      sheet = new Image();
      sheet.addEventListener("load", redraw);
      sheet.src = getComputedStyle(card.querySelector(".tile")).backgroundImage.slice(5, -2); // within url and quotes
    }
    redraw();
  });

  for (const button of section.querySelectorAll("[data-zoom]")) {
    button.addEventListener("click", () => zoomBy(Number(button.dataset.zoom)));
  }

  // pointer and keys

  let drag = null; // the last position of a drag, and the distance so far

  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.offsetX, y: event.offsetY, distance: 0 };
    if (view.zoom > 1) canvas.setPointerCapture(event.pointerId);
  });

  canvas.addEventListener("pointermove", (event) => {
    if (!drag || view.zoom === 1) {
      if (event.pointerType === "mouse") showCard(nearest(event.offsetX, event.offsetY));
      return;
    }
    const [right, below] = [event.offsetX - drag.x, event.offsetY - drag.y];
    drag = { x: event.offsetX, y: event.offsetY, distance: drag.distance + Math.hypot(right, below) };
    moveTo(view.x - right / scale(), view.y + below / scale());
  });

  canvas.addEventListener("pointerup", (event) => {
    if (drag && drag.distance < 6) showCard(nearest(event.offsetX, event.offsetY));
    drag = null;
  });

  canvas.addEventListener("pointercancel", () => (drag = null));
  canvas.addEventListener("pointerleave", (event) => {
    if (event.pointerType === "mouse") showCard(-1);
  });

  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return; // the wheel alone scrolls the page
      event.preventDefault();
      zoomBy(Math.exp(-event.deltaY / 200), event.offsetX, event.offsetY);
    },
    { passive: false },
  );

  canvas.addEventListener("keydown", (event) => {
    const step = 60 / scale();
    const move = (right, up) => {
      if (view.zoom === 1 || event.shiftKey) showNext(right, up);
      else moveTo(view.x + right * step, view.y + up * step);
    };
    const actions = {
      Enter: () => showCard(nearest(canvas.clientWidth / 2, canvas.clientHeight / 2, Infinity)),
      Escape: () => showCard(-1),
      "+": () => zoomBy(1.6),
      "=": () => zoomBy(1.6),
      "-": () => zoomBy(0.625),
      0: () => zoomBy(0),
      ArrowLeft: () => move(-1, 0),
      ArrowRight: () => move(1, 0),
      ArrowUp: () => move(0, 1),
      ArrowDown: () => move(0, -1),
    };
    if (event.ctrlKey || event.metaKey || !(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  });

  new ResizeObserver(() => showCard(-1)).observe(canvas);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  listClasses();
  findClasses();
})();
