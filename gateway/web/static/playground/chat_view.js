// The chat: history on the left, messages and the composer in the middle, settings on the right.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../common/ui.js";
import { call } from "../common/api.js";
import { receivers, useAttachments } from "./attachments.js";
import { chatBody, useChats } from "./chats.js";
import { Composer } from "./composer.js";
import { ContextMeter } from "./figures.js";
import { HistoryView } from "./history_view.js";
import { MessageView } from "./message_view.js";
import { pictureTokens } from "./picture_tokens.js";
import { gather } from "./pictures.js";
import { toolList } from "./settings.js";
import { SettingsView } from "./settings_view.js";
import { SnippetsButton } from "./snippets_view.js";
import { path, shownPictures, siblings, textMessages } from "./tree.js";

const COUNT_AFTER = 400; // milliseconds without a change
const EXAMPLES = ["What is deep learning, in two sentences?", "Write a haiku about the sea.", "List three uses of a paper clip."];

/** `active` is whether the view is shown: its keys count only then. */
export function ChatView({ server, settings, setSettings, active }) {
  const state = useChats(server, settings);
  const [draft, setDraft] = useState("");
  const sent = shownPictures(state.chat);
  const attached = useAttachments(server.sight, sent);
  const [over, setOver] = useState(false); // whether files are held over the chat
  const [panes, setPanes] = useState({ history: false, settings: false }); // what a narrow window shows of both
  const search = useRef(null);
  const drafted = withDraft(state.chat, draft, attached.list);
  const used = useUsedContext(server, settings, state, drafted, [draft, attached.list]);
  const toggle = (name) => setPanes((before) => ({ history: false, settings: false, [name]: !before[name] }));
  const close = () => setPanes({ history: false, settings: false });
  const find = () => (setPanes({ history: true, settings: false }), setTimeout(() => search.current.focus()));
  useShortcuts(active, state, { find, close, toggle: () => toggle("history"), open: panes.history || panes.settings });
  const body = async () => (await gather(path(drafted)), chatBody(server, settings, drafted, null));
  return html`
    <div class=${`chat ${panes.history ? "shows-history" : ""} ${panes.settings ? "shows-settings" : ""}`}>
      <aside class="pane left"><${HistoryView} state=${state} search=${search} close=${close} /></aside>
      <section class=${`talk ${over ? "over" : ""}`} aria-label="Chat" ...${receivers(server.sight && attached, setOver)}>
        <${Messages} state=${state} ask=${(words) => state.send(words)} />
        ${state.error && html`<p class="error" role="alert">${state.error}</p>`}
        <${Composer}
          draft=${draft}
          setDraft=${setDraft}
          busy=${state.running !== null}
          send=${(words, pictures) => state.send(words, pictures)}
          stop=${() => state.stop()}
          attached=${attached}
          sent=${sent}
          sight=${server.sight}
        >
          <button type="button" class="small narrow" aria-expanded=${String(panes.history)} onClick=${() => toggle("history")}>Chats</button>
          <button type="button" class="small narrow" aria-expanded=${String(panes.settings)} onClick=${() => toggle("settings")}>Settings</button>
          <${SnippetsButton} body=${body} kind="chat" />
          <${ContextMeter} used=${used} context=${server.context} />
        <//>
      </section>
      <aside class="pane right">
        <label class="field wide">System prompt
          <textarea rows="3" value=${state.chat.system} placeholder="none" onInput=${(event) => state.setSystem(event.target.value)}></textarea>
        </label>
        <${SettingsView} id="chat" server=${server} settings=${settings} setSettings=${setSettings} kind="chat" />
      </aside>
    </div>
  `;
}

/** The chat as it would be sent: with the draft as its last message. */
function withDraft(chat, draft, pictures) {
  if (!draft.trim() && !pictures.length) return chat;
  const node = { id: "draft", parent: chat.leaf, role: "user", content: draft, pictures, made: Infinity };
  return { ...chat, nodes: { ...chat.nodes, draft: node }, leaf: "draft" };
}

function Messages({ state, ask }) {
  const { chat, running } = state;
  const shown = path(chat);
  const list = usePinned(chat);
  const rows = shown.map((node, index) => {
    const last = index === shown.length - 1;
    return html`<${Row} key=${node.id} node=${node} chat=${chat} grows=${running === node.id} last=${last} busy=${running !== null} actions=${state} />`;
  });
  return html`<div class="messages" ref=${list} tabindex="0" role="log" aria-label="Messages" aria-live="off">${rows.length ? rows : html`<${Welcome} ask=${ask} />`}</div>`;
}

/** A message, made anew only if something of it has changed. */
function Row({ node, chat, grows, last, busy, actions }) {
  const alternatives = siblings(chat, node.id);
  return useMemo(
    () => html`<${MessageView} node=${node} alternatives=${alternatives} grows=${grows} last=${last} busy=${busy} actions=${actions} />`,
    [node, alternatives.length, grows, last, busy],
  );
}

function Welcome({ ask }) {
  return html`
    <div class="welcome">
      <h1>What shall we try?</h1>
      <p>Chats stay in this browser. Nothing is kept on the server.</p>
      <div class="examples">${EXAMPLES.map((each) => html`<button type="button" key=${each} onClick=${() => ask(each)}>${each}</button>`)}</div>
    </div>
  `;
}

/** The element of the messages, which stays at its end while it grows, unless the user scrolled up. */
function usePinned(chat) {
  const list = useRef(null);
  const pinned = useRef(true);
  useEffect(() => {
    const element = list.current;
    const follow = () => (pinned.current = element.scrollHeight - element.scrollTop - element.clientHeight < 60);
    element.addEventListener("scroll", follow, { passive: true });
    const observer = new ResizeObserver(() => pinned.current && (element.scrollTop = element.scrollHeight));
    observer.observe(element); // it shrinks as the composer grows
    const watch = () => [...element.children].forEach((child) => observer.observe(child));
    const added = new MutationObserver(watch);
    added.observe(element, { childList: true });
    watch();
    return () => (observer.disconnect(), added.disconnect(), element.removeEventListener("scroll", follow));
  }, []);
  useLayoutEffect(() => {
    pinned.current = true;
    list.current.scrollTop = list.current.scrollHeight;
  }, [chat.id, chat.leaf]);
  return list;
}

/** Tokens of the chat as it is `drafted`, as the server counts them; null while unknown. `draft` is what changes of it. */
function useUsedContext(server, settings, state, drafted, draft) {
  const [used, setUsed] = useState(null);
  const { chat, running } = state;
  useEffect(() => {
    const listed = textMessages(drafted);
    if (running || !server.model) return undefined;
    setUsed((before) => (listed.length ? before : null));
    if (!listed.length) return undefined;
    const aborting = new AbortController();
    const body = { model: server.model, messages: listed, ...toolsOf(settings) };
    const failed = () => aborting.signal.aborted || setUsed(null);
    const counted = () => Promise.all([call("tokenize", body, aborting.signal), pictureTokens(server.model, shownPictures(drafted))]);
    const tell = ([{ count }, more]) => aborting.signal.aborted || setUsed(count + more);
    const timer = setTimeout(() => counted().then(tell, failed), COUNT_AFTER);
    return () => (clearTimeout(timer), aborting.abort());
  }, [server.model, running ? null : chat, running, ...draft, settings.tools]);
  return (running && chat.nodes[running]?.stats?.total) || used;
}

function toolsOf(settings) {
  try {
    return settings.tools.trim() ? { tools: toolList(settings.tools) } : {};
  } catch {
    return {}; // it is told when it is sent
  }
}

function useShortcuts(active, state, panes) {
  useEffect(() => {
    const keys = (event) => {
      const command = event.ctrlKey || event.metaKey;
      if (!active || document.querySelector("dialog[open]")) return;
      if (event.key === "Escape" && panes.open) panes.close();
      else if (event.key === "Escape" && state.running !== null) state.stop();
      else if (command && event.shiftKey && event.key.toLowerCase() === "o") state.create();
      else if (command && event.key.toLowerCase() === "k") panes.find();
      else if (command && event.key.toLowerCase() === "b") panes.toggle();
      else return;
      event.preventDefault();
    };
    addEventListener("keydown", keys);
    return () => removeEventListener("keydown", keys);
  });
}
