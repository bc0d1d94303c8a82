// Text of a page that is too faint against its ground (WCAG 2.1: a ratio of 4.5, or 3 for large letters), as JSON.
(() => {
  const parse = (colour) => {
    const numbers = colour.match(/[\d.]+/g).map(Number);
    return numbers.length === 3 ? [...numbers, 1] : numbers;
  };
  const over = (a, b) => [0, 1, 2].map((i) => a[i] * a[3] + b[i] * (1 - a[3])).concat(1);
  const luminance = (colour) => {
    const [r, g, b] = colour.slice(0, 3).map((v) => {
      v /= 255;
      return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const layers = [];
    for (; element; element = element.parentElement) {
      const colour = parse(getComputedStyle(element).backgroundColor);
      layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, colour) => over(colour, below), [255, 255, 255, 1]);
  };
  const faint = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const element = walker.currentNode.parentElement;
    if (!text || !element.getClientRects().length || element.closest(".headerlink")) continue;
    const style = getComputedStyle(element);
    if (style.visibility === "hidden" || style.opacity === "0") continue;
    const back = ground(element);
    const [high, low] = [luminance(over(parse(style.color), back)), luminance(back)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize);
    const wanted = size >= 24 || (size >= 18.6 && style.fontWeight >= 700) ? 3 : 4.5;
    const ratio = (high + 0.05) / (low + 0.05);
    if (ratio < wanted) faint.push(`${text.slice(0, 30)}: ${ratio.toFixed(2)}`);
  }
  return JSON.stringify(faint);
})();
