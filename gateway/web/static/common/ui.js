// Preact with htm's templates: what every view is made of.
export {
  html,
  render,
  useEffect,
  useLayoutEffect,
  useMemo,
  useReducer,
  useRef,
  useState,
} from "../vendor/htm-preact.js";
