// The chats, the one that is shown, and the answer that is being made. What happens to them goes through here.
import { useEffect, useReducer, useRef } from "../common/ui.js";
import { oncePerFrame } from "./frames.js";
import { generateChat } from "./generation.js";
import { gather } from "./pictures.js";
import { requestFields } from "./settings.js";
import { allChats, deleteChat, saveChat } from "./store.js";
import { messages, newChat, path, showing, withChange, withMessage, without } from "./tree.js";

const SAVE_AFTER = 700; // milliseconds between a change and its being kept

class Chats {
  constructor(draw) {
    this.draw = draw;
    this.server = {};
    this.settings = {};
    this.chat = newChat();
    this.list = []; // the chats that are kept
    this.keeps = true; // whether the browser keeps them
    this.keepsPictures = true; // those of the shown chat
    this.error = null;
    this.run = null; // {id of the message that grows, controller, update}
    this.saving = 0; // timer
    this.turn = 0; // of what is done with the browser's database
  }

  get running() {
    return this.run?.id ?? null;
  }

  // --- messages

  send(content, pictures = []) {
    return this.answer(this.add(this.chat.leaf, { role: "user", content, pictures }));
  }

  reply(call, content) {
    return this.add(this.chat.leaf, { role: "tool", content, call });
  }

  answer(parent) {
    return this.generate(this.add(parent, { role: "assistant" }));
  }

  regenerate(id) {
    return this.answer(this.chat.nodes[id].parent);
  }

  resume(id) {
    return this.generate(id, this.chat.nodes[id]);
  }

  edit(id, content, pictures) {
    const { role, parent, call } = this.chat.nodes[id];
    const edited = this.add(parent, { role, content, call, pictures });
    return role === "user" ? this.answer(edited) : undefined;
  }

  remove(id) {
    this.show(without(this.chat, id));
  }

  branch(id) {
    this.show(showing(this.chat, id));
  }

  setSystem(system) {
    this.show({ ...this.chat, system, updated: Date.now() });
  }

  add(parent, message) {
    const [next, id] = withMessage(this.chat, parent, message);
    this.show(next);
    return id;
  }

  // --- an answer

  /** Let message `id` grow by what the server answers to those before it, or by what follows it if it is `resumed`. */
  async generate(id, resumed = null) {
    this.stop();
    const { content = "", reasoning = "" } = resumed ?? {};
    const update = oncePerFrame((made) =>
      this.show(withChange(this.chat, id, { ...made, content: content + made.content, reasoning: reasoning + made.reasoning })),
    );
    const run = (this.run = { id, controller: new AbortController(), update });
    this.fail(null);
    try {
      await gather(path(this.chat, id));
      const body = chatBody(this.server, this.settings, this.chat, id, resumed !== null);
      await generateChat(body, run.controller.signal, (made) => this.run === run && update.later(made));
    } catch (problem) {
      if (this.run === run) this.broke(run, problem);
    }
    if (this.run === run) this.end("");
  }

  /** End the answer that is being made, here and in the engine. */
  stop() {
    this.run?.controller.abort();
    if (this.run) this.end("stopped");
  }

  end(finish) {
    const { id, update } = this.run;
    update.flush();
    this.run = null;
    const node = this.chat.nodes[id];
    this.show(finish && node ? withChange(this.chat, id, { stats: { ...node.stats, finish } }) : this.chat);
  }

  /** An answer that failed: what there is of it stays, marked; if there is nothing, it would be an empty message. */
  broke({ id, update }, problem) {
    update.flush();
    this.run = null;
    const node = this.chat.nodes[id];
    const empty = node && !node.content && !node.reasoning && !node.calls?.length;
    if (node) this.show(empty ? { ...without(this.chat, id), leaf: node.parent } : withChange(this.chat, id, { stats: { ...node.stats, finish: "broke" } }));
    this.fail(problem.message);
  }

  fail(error) {
    this.error = error;
    this.draw();
  }

  // --- chats

  open(next) {
    if (next.id === this.chat.id) return;
    this.stop();
    this.save();
    this.error = null;
    this.chat = next;
    this.draw();
  }

  create() {
    this.open(newChat());
  }

  insert(next) {
    this.open(next);
    this.save();
  }

  async removeChat(id) {
    if (id === this.chat.id) {
      this.stop();
      this.forgetTimer();
      this.chat = newChat();
    }
    this.list = this.list.filter((each) => each.id !== id);
    this.draw();
    await this.stored(() => deleteChat(id));
  }

  // --- what the browser keeps

  show(next) {
    this.chat = next;
    this.saving ||= setTimeout(() => this.save(), SAVE_AFTER);
    this.draw();
  }

  forgetTimer() {
    clearTimeout(this.saving);
    this.saving = 0;
  }

  save() {
    this.forgetTimer();
    const { chat } = this;
    const known = this.list.some((each) => each.id === chat.id);
    if (!known && !Object.keys(chat.nodes).length) return undefined;
    this.list = [chat, ...this.list.filter((each) => each.id !== chat.id)];
    this.draw();
    return this.stored(async () => (this.keepsPictures = await saveChat(chat)));
  }

  /** Do something with the browser's database, then read the list anew: another tab may have changed it too. */
  async stored(act) {
    const turn = (this.turn += 1);
    try {
      await act();
      const list = await allChats();
      if (turn === this.turn) this.list = list; // else it was read before what has been changed meanwhile
      this.keeps = true;
    } catch {
      this.keeps = false; // the list lives as long as the page
    }
    this.draw();
  }

  /** Begin to follow the browser's database; gives what ends it. */
  start() {
    const leave = () => this.saving && this.save();
    const follow = () => (document.hidden ? leave() : this.stored(() => {}));
    addEventListener("pagehide", leave);
    document.addEventListener("visibilitychange", follow);
    this.stored(() => {});
    return () => {
      removeEventListener("pagehide", leave);
      document.removeEventListener("visibilitychange", follow);
      this.stop();
    };
  }
}

/** The chats of this page, drawn when they change. */
export function useChats(server, settings) {
  const [, draw] = useReducer((count) => count + 1, 0);
  const chats = useRef(null);
  chats.current ??= new Chats(() => draw());
  Object.assign(chats.current, { server, settings });
  useEffect(() => chats.current.start(), []);
  return chats.current;
}

/** The body that asks for message `id`; if it is `resumed`, for what follows it. Raises Error for a wrong setting. */
export function chatBody(server, settings, chat, id, resumed = false) {
  const { parent } = chat.nodes[id] ?? { parent: chat.leaf };
  const goingOn = { continue_final_message: true, add_generation_prompt: false };
  return {
    model: server.model,
    messages: messages(chat, resumed ? id : parent),
    ...requestFields(settings, "chat"),
    ...(resumed ? goingOn : {}),
  };
}
