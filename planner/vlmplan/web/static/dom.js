// Elements. Text goes in as text, never as markup, so that no name can become an element.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

export function byId(id) {
  return document.getElementById(id);
}

export function table(titles, rows, caption) {
  return element(
    "div",
    { class: "scrolls", tabindex: "0", role: "region", "aria-label": caption },
    element(
      "table",
      {},
      element("caption", { class: "hidden-title" }, caption),
      element("thead", {}, element("tr", {}, titles.map((title) => element("th", { scope: "col" }, title)))),
      element(
        "tbody",
        {},
        rows.map(([first, ...cells]) =>
          element("tr", {}, element("th", { scope: "row" }, first), cells.map((cell) => element("td", {}, cell))),
        ),
      ),
    ),
  );
}

// A name behind its colour.
export function keyed(style, name) {
  return element("span", {}, element("span", { class: `key ${style}` }), name);
}

// A button that copies a text; it says for a moment that it did.
export function copyButton(text, label) {
  const button = element("button", { type: "button", onclick: copy }, label);
  async function copy() {
    await navigator.clipboard.writeText(text);
    button.textContent = "copied";
    setTimeout(() => (button.textContent = label), 1200);
  }
  return button;
}
