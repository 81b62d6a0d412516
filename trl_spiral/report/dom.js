"use strict";

// The data that is loaded when the page opens.
const data = JSON.parse(document.getElementById("summary").textContent);

// All elements are created here, and text is inserted as text: `innerHTML` is never used.
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function makeSvg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// A sentence, with text in backticks as code.
function prose(sentence) {
  return sentence.split("`").map((part, k) => k % 2 ? make("code", {}, part) : part);
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) return value.toExponential(1).replace("-", "−").replace("e−", "e-");
  return String(Number(value.toPrecision(Math.max(digits, size >= 1000 ? 4 : digits)))).replace("-", "−");
}

function signed(value, digits = 3) {
  return value > 0 ? `+${number(value, digits)}` : number(value, digits);
}

function whole(value) {
  return Math.round(value).toLocaleString("en-US");
}

// A number with its unit.
function inUnit(value, unit) {
  if (value === null || value === undefined) return "–";
  if (unit === "share") return value > 0 && value < 5e-5 ? "< 0.01 %" : `${Number((100 * value).toFixed(value < 0.1 ? 2 : 1))} %`;
  if (unit === "points") return whole(value);
  return unit === "" ? number(value) : `${number(value)} ${unit}`;
}
