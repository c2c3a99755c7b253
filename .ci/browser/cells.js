// Return the cells of explain's tables whose text is wider than the cell has room for. A heading
// with a title, which has the whole name, may be cut.
const cut = [];
let count = 0;
for (const cell of document.querySelectorAll(".attnext table.numbers:not(.pixels) :is(td, th)")) {
  if (!cell.textContent || cell.title || !cell.getClientRects().length) {
    continue;
  }
  count += 1;
  const range = document.createRange();
  range.selectNodeContents(cell);
  const style = getComputedStyle(cell);
  const space = parseFloat(style.paddingLeft) + parseFloat(style.paddingRight);
  const room = cell.clientWidth - space;
  const text = range.getBoundingClientRect().width;
  if (text > room + 1 || cell.scrollWidth > cell.clientWidth) {
    cut.push(`${cell.textContent}: ${text.toFixed(1)} in ${room.toFixed(1)} pixels`);
  }
}
return [count, cut];
