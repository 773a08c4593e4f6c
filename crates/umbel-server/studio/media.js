// Images and files in messages. Images are painted: a page that loads only from its own server may not load them by address.

import { h } from "./dom.js";

/** Larger images are only named. */
const LARGEST = 8_000_000;

/** @param {{ type: string, source?: { type: string, value: string, mimeType?: string } }} part @returns {HTMLElement} */
export function drawMedia({ type, source }) {
  const label = `${type}${source?.mimeType ? ` (${source.mimeType})` : ""}`;
  const place = h("figure", { class: "media" }, h("figcaption", null, source?.type === "url" ? `${label}: ${source.value}` : label));
  if (type === "image" && source?.type === "data" && source.value.length < LARGEST) void paint(place, source.value, source.mimeType);
  return place;
}

/** @param {HTMLElement} place @param {string} base64 @param {string} [type] */
async function paint(place, base64, type) {
  try {
    const bytes = Uint8Array.from(atob(base64), (sign) => sign.charCodeAt(0));
    const image = await createImageBitmap(new Blob([bytes], { type }));
    const scale = Math.min(1, 480 / image.width, 360 / image.height);
    const canvas = h("canvas", { width: Math.round(image.width * scale), height: Math.round(image.height * scale), role: "img", "aria-label": "An image of the message" });
    canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
    place.prepend(canvas);
  } catch {
    place.append(h("p", { class: "muted" }, "This image cannot be shown."));
  }
}
