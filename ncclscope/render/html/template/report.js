"use strict";
(() => {
  // Build elements and text nodes only: texts of the job must never be parsed as markup.
  const data = JSON.parse(document.getElementById("data").textContent);
  const NAMES = ["scheduled", "started", "completed", "state differs among these ranks"];
  const WHY = {
    "-1": "no such call", "-2": "not posted", "-3": "overwritten", "-4": "not shown",
  };
  const SVG = "http://www.w3.org/2000/svg";
  const diverging = new Set(data.diverging);
  const byId = (id) => document.getElementById(id);

  function make(name, properties = {}, ...children) {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(properties)) {
      if (key === "text") element.textContent = value;
      else if (key in element && key !== "colSpan") element[key] = value;
      else element.setAttribute(key, value);
    }
    element.append(...children);
    return element;
  }

  function draw(name, attributes, text) {
    const element = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  }

  function ranksText(ranks) {
    const spans = [];
    for (const rank of ranks) {
      const last = spans[spans.length - 1];
      if (last && rank === last[1] + 1) last[1] = rank;
      else spans.push([rank, rank]);
    }
    const texts = spans.map(([a, b]) => (a === b ? `${a}` : b === a + 1 ? `${a} ${b}` : `${a}-${b}`));
    return `${ranks.length === 1 ? "rank" : "ranks"} ${texts.join(" ")}`;
  }

  // --- filter ------------------------------------------------------------------------------

  const filter = { ranks: null, comm: null, op: "" };

  function parseRanks(text) {
    // Return null for all ranks, undefined for a text that is not a list of ranks.
    if (!text.trim() || text.trim() === "all") return null;
    const found = [];
    for (const part of text.trim().split(/[\s,;]+/)) {
      const match = /^(\d{1,7})(?:-(\d{1,7}))?$/.exec(part);
      if (!match) return undefined;
      found.push([Number(match[1]), Number(match[2] ?? match[1])]);
    }
    return found;
  }

  const wanted = (rank) => !filter.ranks || filter.ranks.some(([a, b]) => a <= rank && rank <= b);

  // --- calls side by side ------------------------------------------------------------------

  const KEEP = 3; // rows that stay expanded before and after a difference
  const SHOWN = 4; // differences that stay expanded
  const MOST_COLUMNS = matchMedia("(max-width: 640px)").matches ? 2 : 4;

  const opOf = (cell) => (typeof cell === "number" ? null : data.calls[cell[0]][0]);
  const sameCall = (a, b) =>
    typeof a === "number" || typeof b === "number" ? a === b : a[0] === b[0] && a[1] === b[1];

  function cellNode(cell, full) {
    if (typeof cell === "number") return make("td", { className: "none", text: WHY[cell] });
    const [, text, site] = data.calls[cell[0]];
    const node = make("td", { "data-seq": `#${cell[1]}` }, text);
    if (full || cell[2] !== 2) node.append(make("span", { className: "state", text: ` ${NAMES[cell[2]]}` }));
    if (full && site) node.append(make("span", { className: "site", text: `at ${site}` }));
    if (!full && site) node.title = `at ${site}`;
    return node;
  }

  function columnsOf(alignment) {
    return filter.ranks ? alignment.columns.filter((column) => column.ranks.some(wanted)) : alignment.columns;
  }

  function alignmentTable(alignment, box) {
    const all = columnsOf(alignment);
    const columns = box.showAll ? all : all.slice(0, MOST_COLUMNS);
    const table = make("table", { className: "alignment" });
    const head = make("tr", {});
    for (const column of columns) {
      head.append(make("th", { scope: "col", text: "#", className: "number" }));
      const shown = filter.ranks ? column.ranks.filter(wanted) : column.ranks;
      const isDiverging = shown.some((rank) => diverging.has(rank));
      const name = make("th", { scope: "col", className: isDiverging ? "diverging" : "", text: ranksText(shown) });
      name.append(make("span", { className: "state", text: ` ${column.calls} calls` }));
      head.append(name);
    }
    table.append(make("thead", {}, head));
    const body = make("tbody", {});
    const count = columns.length ? columns[0].cells.length : 0;
    const rows = [];
    for (let row = 0; row < count; row++) {
      const cells = columns.map((column) => column.cells[row]);
      const same = cells.every((cell) => sameCall(cell, cells[0]));
      const alike = cells.every((cell) => typeof cell !== "number" && cell[0] === (cells[0] && cells[0][0]));
      const differs = alignment.aligned && !alike && cells.length > 1 && !cells.every((cell) => typeof cell === "number");
      if (!cells.some((cell) => typeof cell !== "number")) continue;
      if (filter.op && !cells.some((cell) => opOf(cell) === filter.op)) continue;
      rows.push({ row, cells, same: same || alike, differs });
    }
    // Show the first differences; collapse the rest, such as the same one in each turn of a loop.
    const near = new Set();
    let differences = 0;
    rows.forEach((one, index) => {
      const here = one.row === alignment.row;
      if ((one.differs && differences++ < SHOWN) || here)
        for (let n = index - KEEP; n <= index + KEEP; n++) near.add(n);
    });
    if (!near.size) for (let n = rows.length - 8; n < rows.length; n++) near.add(n);
    let index = 0;
    while (index < rows.length) {
      let end = index;
      while (end < rows.length && !near.has(end)) end++;
      if (end - index >= 4) {
        body.append(collapsedRow(rows.slice(index, end), columns.length, alignment));
        index = end;
      } else {
        body.append(callRow(rows[index], alignment));
        index++;
      }
    }
    table.append(body);
    return [table, all.length - columns.length];
  }

  function callRow(one, alignment) {
    const first = one.row === alignment.row;
    const row = make("tr", { className: `${one.differs ? "differs" : ""}${first ? " first" : ""}` });
    for (const cell of one.cells) {
      row.append(make("td", { className: "seq", text: typeof cell === "number" ? "" : `#${cell[1]}` }));
      row.append(cellNode(cell, one.differs || first));
    }
    return row;
  }

  // Return the shortest period with which the rows repeat; 0 if they do not.
  function period(rows) {
    const keys = rows.map((one) => one.cells.map((cell) => (typeof cell === "number" ? cell : data.calls[cell[0]][1])).join("\n"));
    for (let size = 1; size <= Math.min(16, keys.length / 2); size++)
      if (keys.every((key, n) => n < size || key === keys[n - size])) return size;
    return 0;
  }

  function collapsedRow(rows, columns, alignment) {
    const size = period(rows);
    const first = rows[0].cells.find((cell) => typeof cell !== "number");
    const last = rows[rows.length - 1].cells.find((cell) => typeof cell !== "number");
    const differing = rows.filter((one) => one.differs).length;
    const span = `#${first[1]} to #${last[1]}`;
    let text = differing
      ? `▸ ${rows.length} more rows, ${differing} of them different, ${span}`
      : `▸ ${rows.length} ${alignment.aligned ? "equal " : ""}calls, ${span}`;
    if (size && size <= 3 && !differing) {
      const names = rows.slice(0, size).map((one) => {
        const cell = one.cells.find((each) => typeof each !== "number");
        return data.calls[cell[0]][1];
      });
      text += `: ${Math.floor(rows.length / size)} × ${names.join(", ")}`;
    }
    const button = make("button", { type: "button", text, "aria-expanded": "false" });
    const cell = make("td", {}, button);
    cell.colSpan = 2 * columns;
    const row = make("tr", { className: "collapsed" }, cell);
    button.addEventListener("click", () => {
      const next = rows.map((one) => callRow(one, alignment));
      row.replaceWith(...next);
      next[0].tabIndex = -1;
      next[0].focus({ preventScroll: true });
    });
    return row;
  }

  const boxes = [];

  function alignmentBox(alignment, number) {
    const comm = data.comms[alignment.comm];
    const differs = alignment.seq !== null;
    const box = make("details", { className: `alignment-box${differs ? " differs" : ""}`, open: number === 0 });
    const what = !alignment.aligned
      ? "sends and receives, each rank's own, not aligned"
      : differs ? `around call #${alignment.seq}` : "no difference; the last calls";
    box.append(make("summary", {}, make("b", { text: comm.text }), ` ${what}`));
    const body = make("div", { className: "wide", tabIndex: 0, role: "region", "aria-label": `Calls on ${comm.text}` });
    const more = make("button", { type: "button", className: "more" });
    box.append(body, more);
    const one = { box, alignment, showAll: false, drawn: false };
    more.addEventListener("click", () => { one.showAll = true; fill(); });
    function fill() {
      const [table, rest] = alignmentTable(alignment, one);
      body.replaceChildren(table);
      more.hidden = rest <= 0;
      more.textContent = `Show ${rest} more column${rest === 1 ? "" : "s"}`;
      one.drawn = true;
    }
    one.fill = fill;
    box.addEventListener("toggle", () => { if (box.open && !one.drawn) fill(); });
    if (box.open) fill();
    boxes.push(one);
    return box;
  }

  function drawAlignments() {
    const place = byId("alignments");
    if (!place) return;
    const calm = make("details", { className: "calm" });
    const quiet = [];
    data.alignments.forEach((alignment, number) => {
      const box = alignmentBox(alignment, number);
      if (number > 0 && alignment.seq === null && alignment.aligned) quiet.push(box);
      else place.append(box);
    });
    if (quiet.length > 3) {
      calm.append(make("summary", { text: `${quiet.length} more communicators, without a difference` }), ...quiet);
      place.append(calm);
    } else place.append(...quiet);
  }

  function filterAlignments() {
    let shown = 0;
    for (const one of boxes) {
      const comm = data.comms[one.alignment.comm];
      const fits =
        (filter.comm === null || one.alignment.comm === filter.comm) &&
        (!filter.ranks || one.alignment.columns.some((column) => column.ranks.some(wanted))) &&
        (!filter.op || one.alignment.columns.some((column) => column.cells.some((cell) => opOf(cell) === filter.op)));
      one.box.hidden = !fits;
      shown += fits;
      one.drawn = false;
      if (fits && filter.comm !== null) one.box.open = true;
      if (fits && one.box.open) one.fill();
    }
    const calm = document.querySelector(".calm");
    if (calm) {
      const inside = [...calm.querySelectorAll(".alignment-box")].filter((box) => !box.hidden).length;
      calm.hidden = !inside;
      if (filter.comm !== null && inside) calm.open = true;
    }
    return shown;
  }

  // --- table of ranks ----------------------------------------------------------------------

  function filterTable() {
    const rows = [...document.querySelectorAll("#table tbody tr")];
    const comm = filter.comm === null ? null : new Set(data.comms[filter.comm].ranks);
    let shown = 0;
    for (const row of rows) {
      const ranks = row.dataset.ranks.split(" ").map(Number);
      const fits = ranks.some((rank) => wanted(rank) && (!comm || !comm.size || comm.has(rank)));
      const group = row.parentElement.querySelector("tr.group");
      const hidden = group && row !== group && !expanded(group);
      row.hidden = !fits || Boolean(hidden);
      if (fits && !row.classList.contains("group")) shown++;
    }
    return shown;
  }

  const expanded = (group) => group.querySelector(".expand").getAttribute("aria-expanded") === "true";

  for (const button of document.querySelectorAll(".expand"))
    button.addEventListener("click", () => {
      const open = button.getAttribute("aria-expanded") !== "true";
      button.setAttribute("aria-expanded", String(open));
      filterTable();
    });

  // --- timeline ----------------------------------------------------------------------------

  const ROW = 13, TOP = 22, RIGHT = 46;
  const SPANS = [100, 200, 500];
  while (SPANS.length < 24) SPANS.push(SPANS[SPANS.length - 3] * 10);
  let span = 0;
  let cursor = null; // [row, call] that the arrow keys have selected
  let shownRows = [];

  const timeText = (micros) =>
    micros >= 1e6 ? `${(micros / 1e6).toFixed(3)} s` : micros >= 1e3 ? `${(micros / 1e3).toFixed(2)} ms` : `${micros} µs`;

  function unitText(micros) {
    const [size, unit] = span >= 1e6 ? [1e6, "s"] : span >= 1e3 ? [1e3, "ms"] : [1, "µs"];
    return `${Number((micros / size).toPrecision(3))} ${unit}`;
  }

  // In a large job, show the diverging ranks and the members of the verdict's communicator.
  const concerned = new Set([...diverging, ...(diverging.size && data.comms.length ? data.comms[0].ranks : [])]);
  const isLarge = () => data.timeline.rows.length > 60 && concerned.size > 0;

  function say(row, number) {
    const [, text, site] = data.calls[row.call[number]];
    const comm = data.comms[row.comm];
    const place = site ? ` at ${site}` : "";
    byId("time-text").textContent =
      `rank ${row.rank}, ${comm.label}: ${text}${place}, posted ${timeText(row.at[number])} before the last call`;
  }

  const nameOf = (row) => data.comms[row.comm].label + (row.p2p ? " p2p" : "");

  function drawTimeline() {
    const place = byId("timeline");
    if (!place || !data.timeline) return;
    const few = isLarge() && !filter.ranks && filter.comm === null && !byId("time-all").checked;
    byId("time-check").hidden = !isLarge() || Boolean(filter.ranks) || filter.comm !== null;
    shownRows = data.timeline.rows.filter(
      (row) => wanted(row.rank) && (!few || concerned.has(row.rank)) && (filter.comm === null || row.comm === filter.comm) &&
        (!filter.op || row.call.some((call) => data.calls[call][0] === filter.op)),
    );
    const width = Math.max(place.clientWidth - 4, 340);
    const height = TOP + ROW * shownRows.length + 6;
    const letters = Math.min(
      matchMedia("(max-width: 640px)").matches ? 11 : 26,
      Math.max(5, ...shownRows.map((row) => nameOf(row).length)),
    );
    const LEFT = 70 + 6.8 * letters;
    const scale = (width - LEFT - RIGHT) / span;
    const x = (at) => width - RIGHT - at * scale;
    const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Calls posted within ${timeText(span)} before the last one` });
    const parts = width < 640 ? 2 : 4;
    for (let part = 0; part <= parts; part++) {
      const at = (span * part) / parts;
      svg.append(draw("path", { class: "grid", d: `M${x(at)} ${TOP - 6}V${height}` }));
      svg.append(draw("text", { x: x(at), y: 11, "text-anchor": part ? "middle" : "end" }, part ? `−${unitText(at)}` : "last call"));
    }
    const kinds = [...new Set(data.timeline.rows.map((row) => data.comms[row.comm].label.replace(/:\d+/, "")))];
    let before = null;
    shownRows.forEach((row, index) => {
      const y = TOP + ROW * index;
      const isDiverging = diverging.has(row.rank);
      const comm = data.comms[row.comm];
      if (row.rank !== before) {
        svg.append(draw("path", { class: "between", d: `M0 ${y}H${width}` }));
        svg.append(draw("text", { x: 2, y: y + 10, class: isDiverging ? "diverging-name" : "" }, `rank ${row.rank}`));
      }
      before = row.rank;
      const label = nameOf(row);
      svg.append(draw("text", { x: 62, y: y + 10 }, label.length > letters ? `${label.slice(0, letters - 1)}…` : label));
      const last = row.at.length - 1;
      if (row.open) {
        const from = Math.max(LEFT, x(row.at[last]));
        svg.append(draw("rect", { class: `open${isDiverging ? " diverging-row" : ""}`, x: from, y: y + 2, width: width - 4 - from, height: ROW - 4 }));
      }
      const kind = kinds.indexOf(comm.label.replace(/:\d+/, "")) % 3;
      const colour = isDiverging ? "diverging-row" : ["", "second", "third"][kind];
      let strokes = "";
      row.at.forEach((at, n) => {
        if (at <= span && (!filter.op || data.calls[row.call[n]][0] === filter.op))
          strokes += `M${x(at).toFixed(1)} ${y + 2}v${ROW - 4}`;
      });
      if (!strokes)
        svg.append(draw("text", { x: LEFT + 2, y: y + 10 }, `◂ ${timeText(row.at[last])} before`));
      svg.append(draw("path", { class: `ticks ${colour}`, d: strokes }));
    });
    const mark = draw("path", { class: "cursor", d: "" });
    svg.append(mark);
    function at(index, number) {
      cursor = [index, number];
      const row = shownRows[index];
      mark.setAttribute("d", row.at[number] <= span ? `M${x(row.at[number])} ${TOP + ROW * index}v${ROW}` : "");
      say(row, number);
    }
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const index = Math.floor((event.clientY - box.top - TOP) / ROW);
      const row = shownRows[index];
      if (!row) return;
      const time = (width - RIGHT - (event.clientX - box.left)) / scale;
      let best = 0;
      row.at.forEach((one, n) => { if (Math.abs(one - time) < Math.abs(row.at[best] - time)) best = n; });
      at(index, best);
    });
    place.onkeydown = (event) => {
      const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      const move = moves[event.key];
      if (!move || !shownRows.length) return;
      event.preventDefault();
      if (!cursor) return at(0, shownRows[0].at.length - 1);
      const index = Math.min(shownRows.length - 1, Math.max(0, cursor[0] + move[0]));
      const row = shownRows[index];
      let number = cursor[1] + move[1];
      if (move[0]) { // select the call nearest in time
        const time = shownRows[cursor[0]].at[cursor[1]];
        number = 0;
        row.at.forEach((one, n) => { if (Math.abs(one - time) < Math.abs(row.at[number] - time)) number = n; });
      }
      at(index, Math.min(row.at.length - 1, Math.max(0, number)));
    };
    cursor = null;
    place.replaceChildren(svg);
  }

  function setUpTimeline() {
    if (!data.timeline) return;
    const all = data.timeline.rows.map((row) => row.at[0]);
    const farthest = Math.max(...all, 1);
    const choices = SPANS.filter((value, n) => n === 0 || SPANS[n - 1] < farthest);
    const select = byId("time-span");
    for (const value of choices) {
      span = value;
      select.append(make("option", { value: String(value), text: unitText(value) }));
    }
    // Choose the span in which most rows still have some calls.
    const spread = data.timeline.rows.map((row) => row.at[Math.max(0, row.at.length - 20)]).sort((a, b) => a - b);
    const usual = Math.max(spread[Math.floor(spread.length / 2)] ?? 1, 1);
    span = choices.find((value) => value >= usual) ?? choices[choices.length - 1];
    select.value = String(span);
    select.addEventListener("change", () => { span = Number(select.value); drawTimeline(); });
    byId("time-all").addEventListener("change", drawTimeline);
    byId("time-controls").hidden = false;
    let timer = 0;
    addEventListener("resize", () => { clearTimeout(timer); timer = setTimeout(drawTimeline, 150); });
  }

  // --- set-up ------------------------------------------------------------------------------

  function setUpFilter() {
    const form = byId("filter");
    const comms = byId("filter-comm");
    data.comms.forEach((comm, number) => comms.append(make("option", { value: String(number), text: comm.text })));
    const ops = byId("filter-op");
    for (const op of [...new Set(data.calls.map((call) => call[0]))].sort())
      ops.append(make("option", { value: op, text: op }));
    function apply() {
      const field = byId("filter-ranks");
      const ranks = parseRanks(field.value);
      field.setAttribute("aria-invalid", String(ranks === undefined));
      filter.ranks = ranks ?? null;
      filter.comm = comms.value === "" ? null : Number(comms.value);
      filter.op = ops.value;
      const rows = filterTable();
      const alignments = filterAlignments();
      drawTimeline();
      const on = filter.ranks || filter.comm !== null || filter.op;
      const what = ranks === undefined ? "Ranks are written like 0-3 13." : `${rows} ranks, ${alignments} communicators`;
      byId("filter-count").textContent = on || ranks === undefined ? what : "";
    }
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => { event.preventDefault(); apply(); });
    form.addEventListener("reset", () => setTimeout(apply));
    form.hidden = !data.alignments.length;
  }

  drawAlignments();
  setUpFilter();
  setUpTimeline();
  drawTimeline();
})();
