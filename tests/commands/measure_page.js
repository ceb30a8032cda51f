// Runs in the head of report.html and writes its measurements into the document (tests/commands/test_report_page.py).
const wrong = [];
addEventListener("error", e => wrong.push("error: " + (e.message || e.target.outerHTML.slice(0, 99))), true);
addEventListener("securitypolicyviolation", e => wrong.push("policy: " + e.violatedDirective + " " + e.blockedURI));
const numbers = text => text.match(/[\d.]+/g).map(Number);
const linear = v => v <= 10.31 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4;
const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
function behind(node) {
  for (; node; node = node.parentElement) {
    const color = numbers(getComputedStyle(node).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
}
function texts() {
  const measured = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node; node = walk.nextNode();) {
    const parent = node.parentElement, range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect();
    if (!node.data.trim() || !box.width) continue;
    const style = getComputedStyle(parent), svg = parent.closest("figure > svg");
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    const both = [light(numbers(svg ? style.fill : style.color)), light(behind(parent))].sort((a, b) => b - a);
    measured.push({
      text: node.data.trim(), contrast: (both[0] + 0.05) / (both[1] + 0.05), chart: svg && svg.id,
      box: [box.left, box.top, box.right, box.bottom], scrolls: !!parent.closest(".wide"),
      size: scale * parseFloat(style.fontSize),
    });
  }
  return measured;
}
addEventListener("load", () => {
  const out = document.createElement("pre");
  const line = path => ({chart: path.closest("svg").id, length: path.getTotalLength(),
    stroke: getComputedStyle(path).stroke, dashes: getComputedStyle(path).strokeDasharray});
  const charts = Array.from(document.querySelectorAll("figure > svg"), svg => {
    const box = svg.getBoundingClientRect();
    return [svg.id, [box.left, box.top, box.right, box.bottom]];
  });
  out.id = "measured";
  out.textContent = JSON.stringify({
    wrong, texts: texts(), charts: Object.fromEntries(charts), dark: matchMedia("(prefers-color-scheme: dark)").matches,
    width: innerWidth, document: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight,
    paper: getComputedStyle(document.body).backgroundColor,
    images: Array.from(document.images, image => [image.naturalWidth, image.getBoundingClientRect().width]),
    lines: Array.from(document.querySelectorAll("figure > svg path[stroke-width='1.8']"), line),
  });
  top.document.body.append(out);
});
