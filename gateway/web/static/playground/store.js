// Chats in the browser's own database, and settings in its storage. Nothing is kept on the server.
//
// A chat is kept anew whenever it changes, its pictures once, in a store of their own.
import { heldUrl } from "./picture_urls.js";
import { allPictures, merged } from "./tree.js";

const NAME = "playground";
const VERSION = 2; // 1 had no pictures
const STORES = ["chats", "pictures"];

let opened = null;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = ({ oldVersion }) => {
      if (oldVersion < 1) request.result.createObjectStore("chats", { keyPath: "id" });
      request.result.createObjectStore("pictures", { keyPath: "id" }).createIndex("chat", "chat");
    };
    request.onerror = () => reject(request.error);
    request.onsuccess = () => {
      const forget = () => (opened = null);
      Object.assign(request.result, { onclose: forget, onversionchange: () => (request.result.close(), forget()) });
      resolve(request.result);
    };
  });
  return opened;
}

/** What `act` finds with the stores of chats and of pictures, once it is written. Raises what the browser does. */
async function transact(mode, act) {
  try {
    const transaction = (await database()).transaction(STORES, mode);
    const result = act(...STORES.map((name) => transaction.objectStore(name)));
    return await new Promise((resolve, reject) => {
      transaction.oncomplete = () => resolve(result?.result);
      transaction.onabort = transaction.onerror = ({ target }) => reject(target.error);
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

let full = false; // whether the browser had no room for a picture

/** Keep a chat, with what another tab has added to it. Whether its pictures are kept too. Raises as `allChats`. */
export async function saveChat(chat) {
  const pictures = allPictures(chat).length > 0;
  try {
    await write(chat, pictures && !full);
  } catch (error) {
    if (error?.name !== "QuotaExceededError" || !pictures || full) throw error;
    full = true;
    await write(chat, false);
  }
  return !pictures || !full;
}

function write(chat, addsPictures) {
  return transact("readwrite", (chats, pictures) => {
    chats.get(chat.id).onsuccess = ({ target }) => {
      const whole = target.result ? merged(chat, target.result) : chat;
      chats.put(whole);
      keepPictures(pictures, whole, addsPictures);
    };
  });
}

/** Add the pictures of a chat that are not kept yet, if `adds`, and delete those that it has no more. */
function keepPictures(store, chat, adds) {
  const wanted = new Set(allPictures(chat).map(({ id }) => id));
  store.index("chat").getAllKeys(chat.id).onsuccess = ({ target }) => {
    const kept = new Set(target.result);
    for (const id of kept) if (!wanted.has(id)) store.delete(id);
    for (const id of adds ? wanted : []) if (!kept.has(id) && heldUrl(id)) store.put({ id, chat: chat.id, url: heldUrl(id) });
  };
}

export function deleteChat(id) {
  full = false;
  return transact("readwrite", (chats, pictures) => {
    chats.delete(id);
    keepPictures(pictures, { id, nodes: {} }, false);
  });
}

/** The URL of a picture that is kept; null if it is not. Raises as `allChats`. */
export const storedPicture = async (id) => (await transact("readonly", (_, pictures) => pictures.get(id)))?.url ?? null;

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
