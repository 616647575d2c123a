// This script shows a question, sends its answer, and shows the next one.
"use strict";

(() => {
  const [facts, error, first, second] = ["facts", "error", "first", "second"].map((id) => document.getElementById(id));
  const KEYS = { y: "same", n: "not", s: "skip", u: "undo" };
  const ANSWERS = { same: true, not: false, skip: null, undo: null };
  let question = null;
  let isBusy = false;

  function show(next) {
    question = next;
    const isOver = next.first === null;
    facts.textContent = `Answers: ${next.number}. Labeled images: ${next.labeled}. Classes: ${next.classes}.`;
    if (isOver) facts.textContent += " Nothing is left to ask.";
    document.querySelector(".pair").hidden = isOver;
    for (const [image, number] of isOver ? [] : [[first, next.first], [second, next.second]]) image.src = `api/images/${number}`;
    for (const id of ["same", "not", "skip"]) document.getElementById(id).disabled = isOver;
    document.getElementById("undo").disabled = !next.number;
  }

  async function ask(path, body) {
    isBusy = true;
    try {
      const options = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
      const response = await fetch(path, options);
      const answer = await response.json();
      if (!response.ok) throw new Error(answer.error);
      show(answer);
      error.hidden = true;
    } catch (problem) {
      error.textContent = problem instanceof TypeError ? "The server does not answer." : problem.message;
      error.hidden = false;
    }
    isBusy = false;
  }

  function reply(id) {
    if (isBusy || !question || document.getElementById(id).disabled) return;
    ask("api/answers", { number: question.number, answer: ANSWERS[id], undo: id === "undo" });
  }

  for (const id of Object.values(KEYS)) document.getElementById(id).addEventListener("click", () => reply(id));
  window.addEventListener("keydown", (event) => {
    const id = KEYS[event.key.toLowerCase()];
    if (id && !event.repeat && !event.ctrlKey && !event.metaKey && !event.altKey) reply(id);
  });
  ask("api/question");
})();
