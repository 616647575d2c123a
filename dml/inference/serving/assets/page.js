// This script sends the query to the server, and shows the neighbors that it answers with.
"use strict";

(() => {
  const [facts, crop, query, queryName, file, label, count, error, title, explanation, results, more] =
    "facts crop query query-name file label count error title explanation results more"
      .split(" ").map((id) => document.getElementById(id));
  const PAGE = 48;
  const PICTURE = 224; // pixels: twice the width of a tile, for screens of a high density
  const SVG = "http://www.w3.org/2000/svg";
  let index = null;
  let upload = null; // a promise of the query's bytes; null if the query is an item, whose number is in the address
  const uploads = new Map(); // {number: file} of the images that were uploaded, to which the browser goes back
  let latest = 0; // the number of the last request: answers to earlier ones are dropped
  let shown = 0;

  const make = (name, className, text) => {
    const element = document.createElement(name);
    element.className = className;
    element.textContent = text ?? "";
    return element;
  };

  const format = (number) => number.toLocaleString("en");

  const counted = (number, noun) => `${format(number)} ${noun}${number === 1 ? "" : "s"}`;

  async function ask(path, options) {
    let response;
    try {
      response = await fetch(path, options);
    } catch {
      throw new Error("The server does not answer.");
    }
    const answer = await response.json().catch(() => ({ error: `The server answers with status ${response.status}.` }));
    if (!response.ok) throw new Error(answer.error);
    return answer;
  }

  function show(problem) {
    error.textContent = problem ? problem.message : "";
    error.hidden = !problem;
  }

  /** Replace the results; if one of them has the focus, the title gets it. */
  function replaceResults(entries) {
    const hasFocus = results.contains(document.activeElement);
    results.replaceChildren(...entries);
    if (hasFocus) title.focus();
  }

  const percent = (share) => (100 * share).toLocaleString("en", { maximumSignificantDigits: 2 });

  /** Show a problem in place of the results, which would stand below the picture of another query. */
  function fail(problem) {
    show(problem);
    title.textContent = "No result";
    explanation.textContent = "";
    replaceResults([]);
    more.hidden = true;
  }

  function picture(item) {
    const relation = item.same ? "same" : ""; // what is below the threshold is unsure, and no error
    const button = make("button", `picture ${relation}`);
    button.type = "button";
    button.title = `${item.label ? `${item.label}, ` : ""}${item.name}: search by it`;
    const frame = make("span", "frame");
    const image = make("img", "");
    image.alt = item.label || item.name;
    image.loading = "lazy";
    image.src = `api/items/${item.item}/image?size=${PICTURE}`;
    frame.append(image);
    if (relation) frame.append(mark(relation));
    const words = make("span", "words");
    words.append(make("strong", "", item.label || item.name));
    if (item.score !== undefined) {
      const probability = item.probability === null ? "" : `${(100 * item.probability).toFixed(0)} %`;
      words.append(make("span", "score", [item.score.toFixed(3), item.same ? "probably the same" : "", probability].filter(Boolean).join(" ")));
    }
    else if (item.label) words.append(item.name);
    button.append(frame, words);
    button.addEventListener("click", () => searchByItem(item.item));
    const entry = make("li", "");
    entry.append(button);
    return entry;
  }

  function mark(relation) {
    const svg = document.createElementNS(SVG, "svg");
    svg.setAttribute("class", `mark ${relation}`);
    svg.setAttribute("aria-hidden", "true");
    const use = document.createElementNS(SVG, "use");
    use.setAttribute("href", `#mark-${relation}`);
    svg.append(use);
    return svg;
  }

  /** Run a request; its answer goes to `display` or its problem to `refuse`, unless another request has followed. */
  async function run(request, display, refuse = fail) {
    const number = ++latest;
    document.body.classList.add("busy");
    try {
      const answer = await request();
      if (number !== latest) return;
      show(null);
      display(answer);
    } catch (problem) {
      if (number === latest) refuse(problem);
    } finally {
      if (number === latest) document.body.classList.remove("busy");
    }
  }

  function options() {
    const chosen = new URLSearchParams({ k: count.value });
    if (label.value) chosen.set("label", label.value);
    return chosen;
  }

  function explainScores() {
    const sentences = ["The number is the cosine similarity."];
    if (index.threshold !== null) {
      const { wrong_share: wrong } = index.threshold_errors;
      sentences.push(`A tick and “probably the same” mark images from ${index.threshold.toFixed(3)} on, ${index.threshold_choice} on the validation classes. ${wrong === undefined ? "" : `Of the nearest test images that it marks, ${percent(wrong)} % are wrong. `}An image without them may be of the class, too.`);
    }
    if (index.prior !== null) {
      sentences.push(`The percentage is the probability that an image is of the query's class, if ${percent(index.prior)} % of all pairs of images are of one class${index.prior_is_of_labels ? "" : ", as among the validation classes"}.`);
    }
    return sentences.join(" ");
  }

  function display({ neighbors }) {
    title.textContent = label.value ? `Most similar images with the label ${label.value}` : "Most similar images";
    const fewer = neighbors.length < Number(count.value) ? `Only ${counted(neighbors.length, "image")} could be found. ` : "";
    explanation.textContent = fewer + explainScores();
    replaceResults(neighbors.map(picture));
    more.hidden = true;
  }

  function showQuery(source, name) {
    if (query.src.startsWith("blob:")) URL.revokeObjectURL(query.src);
    crop.hidden = !source;
    if (source) query.src = source;
    else query.removeAttribute("src");
    queryName.textContent = name;
  }

  function searchByUpload(chosen) {
    if (!index) return; // the page is loading, or the server doesn't answer, which the page says
    const number = uploads.size + 1;
    uploads.set(number, { chosen, bytes: read(chosen, nameOf(chosen)) });
    history.pushState({ upload: number }, "", location.pathname);
    followAddress();
  }

  const nameOf = (chosen) => chosen.name || "pasted image";

  /** Read a file once: it may be edited or deleted while the page still searches by it. */
  async function read(chosen, name) {
    const most = index.max_upload_bytes;
    if (chosen.size > most) throw new Error(`${name}: more than ${format(most)} bytes; choose a smaller image.`);
    try {
      return await chosen.arrayBuffer();
    } catch {
      throw new Error(`${name}: can't be read any more; choose it again.`);
    }
  }

  function searchByItem(item) {
    if (location.hash === `#${item}`) search();
    else location.hash = item; // the address of a search by an item can be kept, and the browser goes back to it
    window.scrollTo({ top: 0 });
  }

  function search() {
    const item = location.hash.slice(1);
    if (upload) {
      run(async () => ask(`api/search?${options()}`, { method: "POST", body: await upload }), display);
    } else if (/^\d+$/.test(item)) {
      run(() => ask(`api/items/${item}/neighbors?${options()}`), display);
    } else browse(0);
  }

  function browse(offset) {
    const page = new URLSearchParams({ offset, limit: PAGE });
    if (label.value) page.set("label", label.value);
    run(
      () => ask(`api/items?${page}`),
      ({ total, items }) => {
        title.textContent = label.value ? `Images with the label ${label.value}` : "Images of the index";
        explanation.textContent = "";
        const entries = items.map(picture);
        if (offset) results.append(...entries);
        else replaceResults(entries);
        shown = offset + items.length;
        const hasFocus = document.activeElement === more;
        more.hidden = shown >= total;
        if (hasFocus && more.hidden && entries.length) entries[0].firstElementChild.focus();
      },
      offset ? show : fail, // the pages before stay, and the next one can be asked for again
    );
  }

  async function followAddress() {
    const uploaded = uploads.get(history.state?.upload); // none after the page was loaded anew
    upload = uploaded ? uploaded.bytes : null;
    const item = location.hash.slice(1);
    if (uploaded) {
      showQuery(URL.createObjectURL(uploaded.chosen), nameOf(uploaded.chosen));
      search();
    } else if (/^\d+$/.test(item)) {
      showQuery(`api/items/${item}/image?size=${3 * PICTURE}`, "");
      search();
      try {
        const { name, label: own } = await ask(`api/items/${item}`);
        if (!upload && location.hash.slice(1) === item) queryName.textContent = own ? `${own}, ${name}` : name;
      } catch {
        // the search says the same
      }
    } else {
      showQuery("", "Drop or paste an image, click one below, or");
      browse(0);
    }
  }

  query.addEventListener("error", () => (crop.hidden = true)); // a format that the browser does not show
  file.addEventListener("change", () => {
    if (file.files.length) searchByUpload(file.files[0]);
    file.value = ""; // so that the same file can be chosen again
  });
  label.addEventListener("change", search);
  label.addEventListener("input", () => {
    if (!label.value) search(); // it was cleared, which is no change until the field loses the focus
  });
  count.addEventListener("change", search);
  more.addEventListener("click", () => browse(shown));
  document.getElementById("browse").addEventListener("click", () => {
    history.pushState(null, "", location.pathname);
    followAddress();
  });
  document.querySelector("form").addEventListener("submit", (event) => event.preventDefault());
  window.addEventListener("popstate", followAddress);
  window.addEventListener("paste", (event) => {
    if (event.clipboardData.files.length) searchByUpload(event.clipboardData.files[0]);
  });
  window.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dragging");
  });
  window.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dragging");
  });
  window.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dragging");
    if (event.dataTransfer.files.length) searchByUpload(event.dataTransfer.files[0]);
  });

  async function start() {
    try {
      index = await ask("api/index");
      const labels = await ask("api/labels");
      const counts = [counted(index.images, "image"), ...(index.labels ? [counted(index.labels, "label")] : [])];
      facts.textContent = [...counts, `model ${index.model}`].join(", ");
      document.getElementById("labels").append(
        ...labels.map(({ label: name, images }) => {
          const option = make("option", "", counted(images, "image"));
          option.value = name;
          return option;
        }),
      );
      followAddress();
    } catch (problem) {
      fail(problem);
    }
  }
  start();
})();
