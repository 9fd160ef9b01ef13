/** Small values in localStorage: drafts, theme, language, defaults. Without storage they are lost on reload. */

export const memory = {
  /** @param {string} name
   * @returns {any} */
  read(name) {
    try { return JSON.parse(localStorage.getItem(name) ?? "null"); } catch { return null; }
  },
  /** Returns whether the value was stored.
   * @param {string} name
   * @param {any} value */
  write(name, value) {
    try { localStorage.setItem(name, JSON.stringify(value)); return true; } catch { return false; /* full or refused */ }
  },
  /** @param {string} name */
  remove(name) {
    try { localStorage.removeItem(name); } catch { /* refused */ }
  },
  /** @param {string} prefix */
  names(prefix) {
    try { return Object.keys(localStorage).filter(name => name.startsWith(prefix)); } catch { return []; }
  },
};

/** @param {any} value */
export const text = value => typeof value === "string" ? value : "";

/** An id that sorts by time. */
export const newId = () => `${Date.now().toString(36).padStart(9, "0")}-${Math.random().toString(36).slice(2, 10)}`;
