"use strict";
// Without this script the page is complete; it adds sorting and copying.
(function () {
  function key(row, column, kind) {
    var cell = row.cells[column];
    var value = cell && cell.dataset.value !== undefined ? cell.dataset.value
      : cell ? cell.textContent.trim() : "";
    if (kind !== "number") { return value.toLowerCase(); }
    var number = parseFloat(value);
    return isNaN(number) ? null : number;
  }

  function compare(a, b) {
    return typeof a === "number" ? a - b : a.localeCompare(b);
  }

  // The last row of headings; a row above it names groups of columns.
  function heads(table) {
    return table.tHead.rows[table.tHead.rows.length - 1].cells;
  }

  // Rows without a value stay at the bottom either way.
  function sort(table, head, direction) {
    var column = head.cellIndex, kind = head.dataset.sort, body = table.tBodies[0];
    var rows = Array.prototype.slice.call(body.rows).map(function (row, place) {
      return { row: row, place: place, key: key(row, column, kind) };
    });
    rows.sort(function (a, b) {
      if (a.key === null || b.key === null) {
        return (a.key === null) - (b.key === null) || a.place - b.place;
      }
      return direction * compare(a.key, b.key) || a.place - b.place;
    });
    rows.forEach(function (entry) { body.appendChild(entry.row); });
    Array.prototype.forEach.call(heads(table), function (cell) {
      cell.removeAttribute("aria-sort");
    });
    head.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
  }

  // The first choice is what a reader looks for: the best first, names from A to Z.
  function first(head) {
    return head.dataset.best === "higher" ? -1 : 1;
  }

  document.querySelectorAll("table").forEach(function (table) {
    Array.prototype.forEach.call(heads(table), function (head) {
      var button = document.createElement("button"), start = first(head);
      button.type = "button";
      while (head.firstChild) { button.appendChild(head.firstChild); }
      head.appendChild(button);
      button.addEventListener("click", function () {
        var now = head.getAttribute("aria-sort");
        var direction = now === null ? start : now === "ascending" ? -1 : 1;
        sort(table, head, direction);
      });
    });
  });

  function copy(text, done) {
    if (navigator.clipboard && navigator.clipboard.writeText) {
      navigator.clipboard.writeText(text.textContent).then(done, function () { select(text); });
    } else {
      select(text);
    }
  }

  function select(text) {
    var range = document.createRange();
    range.selectNodeContents(text);
    var selection = window.getSelection();
    selection.removeAllRanges();
    selection.addRange(range);
  }

  document.querySelectorAll("[data-copy]").forEach(function (box) {
    var text = document.getElementById(box.dataset.copy), button = document.createElement("button");
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", function () {
      copy(text, function () {
        button.textContent = "Copied";
        setTimeout(function () { button.textContent = "Copy"; }, 1500);
      });
    });
    box.appendChild(button);
  });
})();
