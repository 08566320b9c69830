// Pictures that are about to be sent: from files, the clipboard, or dropped. What the server would refuse is told here.
import { html, useRef, useState } from "../common/ui.js";
import { PictureRow } from "./picture_view.js";
import { bytesOf, checkRoom, fromFile, sizeOf, TYPES } from "./pictures.js";
import { forget } from "./picture_urls.js";

/**
 * The pictures of a draft: {list, reading, problem, add, remove, clear}. `reading` is whether files are still being read.
 * @param sight what the server takes; null if its model sees no pictures
 * @param sent those that the chat has already, which go with every request
 */
export function useAttachments(sight, sent) {
  const [state, setState] = useState({ list: [], reading: 0, problem: null });
  const latest = useRef({ list: [] });
  Object.assign(latest.current, { sight, sent });
  const queue = useRef(Promise.resolve()); // files are read one after another, so that they count together
  const show = (list, change) => {
    latest.current.list = list;
    setState((before) => ({ ...before, list, ...change(before) }));
  };
  const addOne = async (file) => {
    const { sight, sent, list } = latest.current;
    const picture = await fromFile(file, sight);
    try {
      checkRoom(picture, [...sent, ...list], sight);
    } catch (error) {
      forget(picture.id);
      throw error;
    }
    show([...latest.current.list, picture], () => ({}));
  };
  const addAll = async (files) => {
    const problems = [];
    for (const file of files) await addOne(file).catch((error) => problems.push(error.message));
    const problem = problems.join("; ") || null;
    show(latest.current.list, ({ reading }) => ({ reading: reading - 1, problem }));
  };
  const add = (files) => {
    setState((before) => ({ ...before, reading: before.reading + 1, problem: null }));
    queue.current = queue.current.then(() => addAll(files));
  };
  const remove = (id) => {
    forget(id);
    show(latest.current.list.filter((each) => each.id !== id), () => ({ problem: null }));
  };
  const clear = () => show([], () => ({ problem: null }));
  return { ...state, reading: state.reading > 0, add, remove, clear };
}

/** What the pointer and the clipboard bring to an element, as its properties; nothing if `attached` is null. */
export function receivers(attached, setOver) {
  if (!attached) return {};
  const brings = (event) => event.dataTransfer?.types.includes("Files");
  return {
    onDragOver: (event) => brings(event) && (event.preventDefault(), setOver(true)),
    onDragLeave: (event) => event.currentTarget.contains(event.relatedTarget) || setOver(false),
    onDrop: (event) => brings(event) && (event.preventDefault(), setOver(false), attached.add([...event.dataTransfer.files])),
    onPaste: (event) => pasted(event).length && (event.preventDefault(), attached.add(pasted(event))),
  };
}

/** The pictures in a clipboard, unless they come with a text in two forms: that of a spreadsheet has a picture of it. */
function pasted({ clipboardData }) {
  if (["text/plain", "text/html"].every((type) => clipboardData.types.includes(type))) return [];
  return [...clipboardData.files].filter(({ type }) => type.startsWith("image/"));
}

/** The button that attaches pictures. */
export function AttachButton({ attached, sight }) {
  const input = useRef(null);
  const chosen = (event) => {
    attached.add([...event.target.files]);
    event.target.value = "";
  };
  const words = `Up to ${sight.most} pictures in a chat, each of up to ${sizeOf(sight.file)} and ${sight.pixels.toLocaleString()} pixels`;
  return html`
    <button type="button" class="small" aria-label="Attach pictures" title=${words} onClick=${() => input.current.click()}>Attach</button>
    <input ref=${input} type="file" multiple accept=${TYPES.join()} aria-label="Pictures to attach" hidden onChange=${chosen} />
  `;
}

/** The pictures of a draft, and how many more there may be. */
export function Attachments({ attached, sight, sent, field }) {
  const all = [...sent, ...attached.list];
  const words = `${all.length} of ${sight.most} pictures in this chat, ${sizeOf(bytesOf(all))} of ${sizeOf(sight.body)}`;
  return html`
    <${PictureRow} pictures=${attached.list} label="Pictures to send" remove=${attached.remove} emptied=${field} />
    <p class="hint attached" role="status">${attached.reading ? "Reading…" : attached.list.length > 0 && words}</p>
    ${attached.problem && html`<p class="error" role="alert">${attached.problem}</p>`}
  `;
}
