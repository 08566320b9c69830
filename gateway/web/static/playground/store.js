// Chats in the browser's own database, and settings in its storage. Nothing is kept on the server.

const NAME = "playground";

function database() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

let opened = null;

async function ask(mode, operation) {
  opened ??= database();
  const store = (await opened).transaction("chats", mode).objectStore("chats");
  const request = operation(store);
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** Every chat, the latest first; none where the browser keeps no database, as in some private windows. */
export async function allChats() {
  try {
    return (await ask("readonly", (store) => store.getAll())).sort((a, b) => b.updated - a.updated);
  } catch {
    return [];
  }
}

export const saveChat = (chat) => ask("readwrite", (store) => store.put(chat)).catch(() => {});
export const deleteChat = (id) => ask("readwrite", (store) => store.delete(id)).catch(() => {});

/** What was kept under `name`, or `otherwise`. */
export function recall(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem(`${NAME}.${name}`)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function remember(name, value) {
  try {
    localStorage.setItem(`${NAME}.${name}`, JSON.stringify(value));
  } catch {
    // a private window: this page remembers, the next does not
  }
}
