/* The CSS. Text keeps the colour of the page, and all other colours are transparent. */

export const STYLE = `
.attnext-view { --accent: #c2313a; --line: rgba(128,128,128,.28); --soft: rgba(128,128,128,.1);
  font: 13px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "PingFang SC",
    "Microsoft YaHei", "Noto Sans CJK SC", sans-serif;
  color: inherit; max-width: 76rem; padding: .4rem .2rem 1rem; container-type: inline-size;
  text-align: left; }
.attnext-view[data-theme="dark"] { --accent: #ff8b78; --line: rgba(160,160,160,.32);
  --soft: rgba(160,160,160,.14); }
.attnext-view *, .attnext-view *::before { box-sizing: border-box; }
.attnext-view [hidden] { display: none !important; }
.attnext-view header { display: flex; align-items: baseline; justify-content: space-between;
  gap: 1rem; }
.attnext-view .title { font-size: 1.3em; font-weight: 600; margin: 0; padding: 0; border: 0;
  color: inherit; letter-spacing: -.01em; }
.attnext-view code { font: 12px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace;
  color: inherit; background: var(--soft); border: 0; padding: .12em .45em; border-radius: 4px;
  overflow-wrap: anywhere; }
.attnext-view button { font: inherit; color: inherit; background: transparent; cursor: pointer;
  border: 1px solid var(--line); border-radius: 999px; padding: .12em .8em; margin: 0; }
.attnext-view button:hover { background: var(--soft); }
.attnext-view button[aria-pressed="true"] { border-color: var(--accent); color: var(--accent); }
.attnext-view :focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
.attnext-view .status { margin: .2rem 0; opacity: .65; }
.attnext-view .status.wrong { opacity: 1; color: var(--accent); }
.attnext-view .language { white-space: nowrap; }

.attnext-view .controls { display: grid; gap: .45rem 1.6rem; margin: .8rem 0 .2rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); }
.attnext-view .control { display: grid; grid-template-columns: 6.4em minmax(5rem, 1fr) minmax(5.5em, auto) auto;
  gap: .7em; align-items: center; margin: 0; font-weight: normal; min-height: 1.9em; }
.attnext-view .check { display: flex; }
.attnext-view .control input[type="range"] { width: 100%; min-width: 0; margin: 0;
  accent-color: var(--accent); }
.attnext-view .control input[type="checkbox"] { accent-color: var(--accent); margin: 0; }
.attnext-view .control output { padding: 0; font-variant-numeric: tabular-nums; opacity: .8;
  white-space: nowrap; }
.attnext-view .control select { font: inherit; color: inherit; background: transparent;
  border: 1px solid var(--line); border-radius: 6px; padding: .15em .4em; }
.attnext-view .control select option { color: #111; background: #fff; }

.attnext-view .stepper { display: flex; flex-wrap: wrap; align-items: center; gap: .35rem;
  margin: .8rem 0 .6rem; }
.attnext-view .stepper > button { width: 2.2em; padding: .1em 0; text-align: center; }
.attnext-view .step-number { font-variant-numeric: tabular-nums; opacity: .7; margin: 0 .5em; }
.attnext-view .chips { display: flex; flex-wrap: wrap; gap: .3rem; }
.attnext-view .chips button { border-color: transparent; background: var(--soft); }
.attnext-view .chips button[aria-pressed="true"] { border-color: var(--accent); }

.attnext-view .matrices { display: flex; flex-wrap: wrap; align-items: flex-start; gap: 1rem 1.8rem; position: relative;
  margin: .6rem 0 .4rem; }
.attnext-view .panel { position: relative; max-width: 100%; padding: .1rem .3rem .5rem;
  border-top: 3px solid transparent; }
.attnext-view .panel.current { border-top-color: var(--accent); }
.attnext-view .panel:not(:last-child, .ends)::after { content: "→"; position: absolute; right: -1.5rem;
  top: .15rem; opacity: .5; font-size: 15px; }
.attnext-view .panel .name { border: 0; padding: .1em .2em; border-radius: 4px;
  font-weight: 600; text-align: left; }
.attnext-view .panel .more { opacity: .65; font-size: 11px; }
.attnext-view .scroll { overflow-x: auto; max-width: 100%; padding: 2px; }
.attnext-view .grid { display: grid; width: max-content; gap: 1px; }
.attnext-view .cells { display: contents; }
.attnext-view .head { font-size: 11px; line-height: 1.1; opacity: .68; padding: 0 .5em 0 0;
  align-self: center; justify-self: end; max-width: 9em; overflow: hidden; white-space: nowrap;
  text-overflow: ellipsis; }
.attnext-view .head.column { padding: 0 0 .25em; justify-self: center; align-self: end; }
.attnext-view .head.upright { writing-mode: vertical-rl; transform: rotate(180deg);
  padding: .3em 0 0; max-height: 9em; }
.attnext-view .tiny .head { font-size: 10px; }
.attnext-view .head.lit { opacity: 1; color: var(--accent); font-weight: 600; }
.attnext-view .cell { display: flex; align-items: center; justify-content: center;
  border-radius: 3px; box-shadow: inset 0 0 0 1px var(--line); font-size: 11.5px;
  font-variant-numeric: tabular-nums; transition: background-color .25s; cursor: default; }
.attnext-view .tiny .cell { border-radius: 2px; box-shadow: inset 0 0 0 .5px var(--line); }
.attnext-view .cell.masked { opacity: .7; background: repeating-linear-gradient(45deg,
  transparent 0 4px, rgba(128,128,128,.35) 4px 5px); }
.attnext-view .cell.in-row { box-shadow: inset 0 0 0 1px
  color-mix(in srgb, var(--accent) 55%, transparent); }
.attnext-view .cell.lit { box-shadow: inset 0 0 0 2px var(--accent); }
.attnext-view .cell:focus-visible { outline-offset: 0; z-index: 1; }

.attnext-view .sentence { border-left: 3px solid var(--accent); padding: .1rem 0 .1rem .9rem;
  margin: .5rem 0 1rem; max-width: 46rem; min-height: 4.4em; }
.attnext-view .sentence .shape { font: 12px ui-monospace, SFMono-Regular, Menlo, monospace;
  opacity: .65; margin: 0 .7em; }
.attnext-view .sentence p { margin: .25rem 0 0; }

.attnext-view .below { display: flex; flex-wrap: wrap; gap: 1.4rem 3.4rem;
  align-items: flex-start; }
.attnext-view .detail { flex: 0 1 auto; min-width: min(100%, 20rem); max-width: 100%; }
.attnext-view .facts { display: flex; gap: 1.6rem; margin: .6rem 0 0; }
.attnext-view .facts small { font-size: 1em; opacity: .65; display: block; }
.attnext-view .facts b { font-weight: normal; font-size: 1.3em;
  font-variant-numeric: tabular-nums; }
.attnext-view .vectors { border-collapse: separate; border-spacing: 1px; margin: .4rem 0 0;
  font-size: 11.5px; width: auto; border: 0; color: inherit; }
.attnext-view .vectors tr { background: transparent !important; }
.attnext-view .vectors th { font-weight: normal; text-align: right; padding: 0 .7em 0 0;
  opacity: .7; white-space: nowrap; border: 0; background: none; color: inherit; }
.attnext-view .vectors td { min-width: 40px; height: 25px; padding: 0 .3em; text-align: center;
  border: 0; border-radius: 3px; box-shadow: inset 0 0 0 1px var(--line);
  font-variant-numeric: tabular-nums; color: inherit; }
.attnext-view .vectors.narrow td { min-width: 6px; padding: 0; }
.attnext-view .vectors td.sum { box-shadow: none; padding-left: .7em; white-space: nowrap;
  font-weight: 600; text-align: left; }

.attnext-view figure { margin: 0; min-width: 0; max-width: 100%; }
.attnext-view figcaption { font-weight: 600; margin-bottom: .3rem; }
.attnext-view .lines { flex: 0 1 25rem; width: 100%; }
.attnext-view .lines-svg { width: 100%; display: block; overflow: visible; }
.attnext-view path.line { fill: none; stroke: #e24a33; }
.attnext-view path.chosen { stroke: var(--accent); }
.attnext-view .token { cursor: pointer; }
.attnext-view .token rect { fill: transparent; }
.attnext-view .token text { fill: currentColor; font-size: 12.5px; }
.attnext-view .token.lit rect { fill: rgba(226,74,51,.16); }
.attnext-view .token.lit text { fill: var(--accent); font-weight: 600; }
.attnext-view .token:focus { outline: none; }
.attnext-view .token:focus-visible rect { stroke: var(--accent); stroke-width: 2; }
.attnext-view .wall { flex: 1 1 19rem; }
.attnext-view .wall-all { display: flex; flex-wrap: wrap; gap: .5rem; }
.attnext-view .wall-all button { border-radius: 8px; padding: 5px; display: flex;
  flex-direction: column; align-items: center; gap: 2px; font-size: 11px; line-height: 1.2; }
.attnext-view .wall-all canvas { width: 72px; height: 72px; image-rendering: pixelated;
  display: block; object-fit: contain; }
.attnext-view .wall-all button[aria-pressed="true"] { box-shadow: 0 0 0 1px var(--accent); }

.attnext-view .curve { margin: .8rem 0; max-width: 52rem; }
.attnext-view .curve-svg { width: 100%; display: block; touch-action: none; user-select: none; }
.attnext-view .curve-svg text { fill: currentColor; opacity: .65; font-size: 11px; }
.attnext-view .axes line { stroke: var(--line); }
.attnext-view .fit { fill: none; stroke: var(--accent); stroke-width: 2.5;
  stroke-linejoin: round; pointer-events: none; }
.attnext-view .cursor line { stroke: currentColor; stroke-opacity: .45; stroke-dasharray: 4 4; }
.attnext-view .cursor .query { fill: var(--accent); cursor: ew-resize; }
.attnext-view .dot { fill: #2f6db3; stroke: #2f6db3; stroke-width: 1.5; }
.attnext-view[data-theme="dark"] .dot { fill: #7fb2ea; stroke: #7fb2ea; }
.attnext-view .dot.free { cursor: grab; }
.attnext-view .dot.lit { stroke: var(--accent); stroke-width: 2.5; }
@container (max-width: 34rem) {
  .attnext-view .matrices { flex-wrap: nowrap; overflow-x: auto; scroll-snap-type: x proximity; }
  .attnext-view .panel { flex: none; scroll-snap-align: center; }
  .attnext-view .chips { flex-wrap: nowrap; overflow-x: auto; }
  .attnext-view .chips button { white-space: nowrap; }
}
@media (prefers-reduced-motion: reduce) { .attnext-view .cell { transition: none; } }
`;
