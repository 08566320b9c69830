// The chats and what can be done to the one that is shown. Views call it; it calls the server and the store.
import { useEffect, useRef, useState } from "../common/ui.js";
import { oncePerFrame } from "./frames.js";
import { generateChat } from "./generation.js";
import { requestFields } from "./settings.js";
import { allChats, deleteChat, saveChat } from "./store.js";
import { messages, newChat, showing, withChange, withMessage, without } from "./tree.js";

/** The state of the chat view, and its operations, which heed `settings` as they are when an answer is asked for. */
export function useChat(server, settings) {
  const now = useRef(null);
  now.current = { server, settings };
  const [chats, setChats] = useState([]);
  const [chat, setChat] = useState(newChat);
  const [running, setRunning] = useState(null); // the id of the message that grows
  const [error, setError] = useState(null);
  const latest = useRef(chat);
  const controller = useRef(null);
  const show = (next) => setChat((latest.current = next));

  const keep = async () => {
    if (!Object.keys(latest.current.nodes).length) return;
    await saveChat(latest.current);
    setChats(await allChats());
  };

  /** Let message `id` grow by what the server answers to the messages before it, or to itself if it is `resumed`. */
  const generate = async (id, resumed = null) => {
    const { content = "", reasoning = "" } = resumed ?? {};
    const update = oncePerFrame((answer) =>
      show(withChange(latest.current, id, { ...answer, content: content + answer.content, reasoning: reasoning + answer.reasoning })),
    );
    const aborting = (controller.current = new AbortController());
    setRunning(id);
    setError(null);
    try {
      const body = chatBody(now.current.server, now.current.settings, latest.current, id, resumed !== null);
      await generateChat(body, aborting.signal, update.later);
    } catch (problem) {
      setError(problem.message);
    }
    update.flush();
    if (controller.current === aborting) setRunning(null);
    await keep();
  };

  const answer = (parent) => {
    const [next, id] = withMessage(latest.current, parent, { role: "assistant" });
    show(next);
    return generate(id);
  };

  const stop = () => {
    controller.current?.abort();
    controller.current = null;
    setRunning(null);
  };
  const open = (next) => {
    stop();
    setError(null);
    show(next);
  };

  useEffect(() => {
    allChats().then(setChats);
    return () => controller.current?.abort();
  }, []);

  return {
    chat,
    chats,
    running,
    error,
    stop,
    open,
    create: () => open(newChat()),
    send(content) {
      const [next, id] = withMessage(latest.current, latest.current.leaf, { role: "user", content });
      show(next);
      return answer(id);
    },
    reply(call, content) {
      const [next, id] = withMessage(latest.current, latest.current.leaf, { role: "tool", content, call });
      show(next);
      return id;
    },
    answer,
    regenerate: (id) => answer(latest.current.nodes[id].parent),
    resume: (id) => generate(id, latest.current.nodes[id]),
    edit(id, content) {
      const { role, parent } = latest.current.nodes[id];
      const [next, edited] = withMessage(latest.current, parent, { role, content });
      show(next);
      return role === "user" ? answer(edited) : keep();
    },
    branch: (id) => show(showing(latest.current, id)),
    removeMessage(id) {
      show(without(latest.current, id));
      return keep();
    },
    setSystem: (system) => show({ ...latest.current, system }),
    setError,
    async remove(id) {
      await deleteChat(id);
      setChats(await allChats());
      if (id === latest.current.id) open(newChat());
    },
    async add(next) {
      open(next);
      await keep();
    },
  };
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
