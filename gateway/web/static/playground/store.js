// Chats in the browser's own database, and settings in its storage. Nothing is kept on the server.
import { merged } from "./tree.js";

const NAME = "playground";

let opened = null;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, 1);
    request.onupgradeneeded = () => request.result.createObjectStore("chats", { keyPath: "id" });
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      const forget = () => (opened = null);
      Object.assign(request.result, { onclose: forget, onversionchange: () => (request.result.close(), forget()) });
      resolve(request.result);
    };
  });
  return opened;
}

/** What `act` finds with the store of chats, once it is written. Raises what the browser does. */
async function transact(mode, act) {
  try {
    const transaction = (await database()).transaction("chats", mode);
    const result = act(transaction.objectStore("chats"));
    return await new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve(result?.result);
      transaction.onabort = transaction.onerror = () => reject(transaction.error);
    });
  } catch (error) {
    opened = null; // the next call tries again
    throw error;
  }
}

/** Every chat, the latest first. Raises where the browser keeps no database, as in some private windows. */
export async function allChats() {
  return (await transact("readonly", (store) => store.getAll())).sort((a, b) => b.updated - a.updated);
}

/** Keep a chat, with what another tab has added to it. Raises as `allChats`. */
export function saveChat(chat) {
  return transact("readwrite", (store) => {
    store.get(chat.id).onsuccess = ({ target }) => store.put(target.result ? merged(chat, target.result) : chat);
  });
}

export const deleteChat = (id) => transact("readwrite", (store) => store.delete(id));

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
