"use strict";(self.rspackChunkaner_nb_lab=self.rspackChunkaner_nb_lab||[]).push([[266],{95(e,r,a){var n=a(601),t=a.n(n),o=a(314),i=(a.n(o))()(t());i.push([e.id,`/* What all widgets share. JupyterLab's variables where they are, and values of our own elsewhere. */

.aner {
  --aner-text: var(--jp-ui-font-color0, #1b1b1b);
  --aner-quiet: var(--jp-ui-font-color1, #4a4a4a);
  --aner-back: var(--jp-layout-color1, #fff);
  --aner-back-2: var(--jp-layout-color2, #f2f3f5);
  --aner-line: var(--jp-border-color1, #c4c7cc);
  --aner-accent: #1361a8;
  --aner-on-accent: #fff;
  --aner-accent-back: #e3eefa;
  --aner-good: #1a6b2f;
  --aner-bad: #a51d24;
  --aner-warn: #7a4d00;
  --aner-line-1: #7a8592;
  --aner-line-2: #c2410c;
  container-type: inline-size;
  color: var(--aner-text);
  background: var(--aner-back);
  border: 1px solid var(--aner-line);
  border-radius: 6px;
  margin: 0 0 8px;
  font-family: var(--jp-ui-font-family, system-ui, sans-serif);
  font-size: var(--jp-ui-font-size1, 13px);
  line-height: 1.45;
}

[data-jp-theme-light="false"] .aner,
.vscode-dark .aner {
  --aner-text: var(--jp-ui-font-color0, #f3f3f3);
  --aner-quiet: var(--jp-ui-font-color1, #cfcfcf);
  --aner-back: var(--jp-layout-color1, #1e1e1e);
  --aner-back-2: var(--jp-layout-color2, #2b2b2b);
  --aner-line: var(--jp-border-color1, #5a5a5a);
  --aner-accent: #7cb8f2;
  --aner-on-accent: #0b1a29;
  --aner-accent-back: #1d3852;
  --aner-good: #7fd494;
  --aner-bad: #ff9d9d;
  --aner-warn: #f0c16a;
  --aner-line-1: #93a1b0;
  --aner-line-2: #fb9a5b;
}

@media (prefers-color-scheme: dark) {
  body:not([data-jp-theme-light], .vscode-light) .aner {
    --aner-text: #f3f3f3;
    --aner-quiet: #cfcfcf;
    --aner-back: #1e1e1e;
    --aner-back-2: #2b2b2b;
    --aner-line: #5a5a5a;
    --aner-accent: #7cb8f2;
    --aner-on-accent: #0b1a29;
    --aner-accent-back: #1d3852;
    --aner-good: #7fd494;
    --aner-bad: #ff9d9d;
    --aner-warn: #f0c16a;
    --aner-line-1: #93a1b0;
    --aner-line-2: #fb9a5b;
  }
}

.aner *,
.aner *::before {
  box-sizing: border-box;
}

.aner [hidden] {
  display: none !important;
}

.aner > summary {
  padding: 7px 12px;
  cursor: pointer;
  display: flex;
  align-items: baseline;
  gap: 10px;
  background: var(--aner-back-2);
  border-radius: 5px;
}

.aner > summary::before {
  content: "▸";
  width: 1em;
  color: var(--aner-quiet);
}

.aner[open] > summary {
  border-radius: 5px 5px 0 0;
}

.aner[open] > summary::before {
  content: "▾";
}

.aner-title {
  font-weight: 600;
  font-size: 1.08em;
}

.aner-note {
  color: var(--aner-quiet);
}

.aner-body {
  padding: 10px 12px;
}

.aner-body > * + * {
  margin-top: 10px;
}

.aner h4 {
  margin: 0 0 4px;
  font-size: 1em;
  font-weight: 600;
  overflow-wrap: anywhere;
}

.aner p {
  margin: 0;
}

.aner-status:empty {
  display: none;
}

.aner-warning {
  color: var(--aner-warn);
  overflow-wrap: anywhere;
}

.aner-error {
  display: flex;
  gap: 10px;
  align-items: baseline;
  justify-content: space-between;
  margin: 10px 12px 0;
  padding: 6px 10px;
  border: 1px solid var(--aner-bad);
  border-left-width: 4px;
  border-radius: 4px;
  color: var(--aner-bad);
  overflow-wrap: anywhere;
  white-space: pre-wrap;
}

.aner-error button {
  flex: none;
}

.aner-error:empty {
  display: none;
}

.aner-bar {
  display: flex;
  flex-wrap: wrap;
  gap: 6px 12px;
  align-items: center;
}

.aner-field {
  display: inline-flex;
  align-items: center;
  gap: 6px;
}

.aner-field label,
.aner-check {
  color: var(--aner-quiet);
}

.aner-check {
  display: inline-flex;
  align-items: center;
  gap: 5px;
}

.aner button,
.aner input,
.aner select {
  font: inherit;
  color: var(--aner-text);
  background: var(--aner-back);
  border: 1px solid var(--aner-line);
  border-radius: 4px;
  padding: 3px 8px;
  min-height: 26px;
  max-width: 100%;
}

.aner input[type="checkbox"] {
  min-height: 0;
  margin: 0;
  accent-color: var(--aner-accent);
}

.aner input::placeholder {
  color: var(--aner-quiet);
  opacity: 1;
}

.aner button {
  cursor: pointer;
  background: var(--aner-back-2);
}

.aner button:hover:not(:disabled) {
  border-color: var(--aner-accent);
}

.aner button:disabled {
  opacity: 0.55;
  cursor: default;
}

.aner button.aner-primary:not(:disabled) {
  color: var(--aner-on-accent);
  background: var(--aner-accent);
  border-color: var(--aner-accent);
  font-weight: 600;
}

.aner :focus-visible {
  outline: 2px solid var(--aner-accent);
  outline-offset: 1px;
}

.aner dl {
  display: grid;
  grid-template-columns: max-content 1fr;
  gap: 1px 12px;
  margin: 0;
}

.aner dt {
  color: var(--aner-quiet);
  font-weight: normal;
}

.aner dd {
  margin: 0;
  overflow-wrap: anywhere;
}

/* A table of any length. */

.aner-grid {
  max-height: 340px;
  min-height: 60px;
  overflow: auto;
  border: 1px solid var(--aner-line);
  border-radius: 4px;
  background: var(--aner-back);
}

.aner-heads {
  position: sticky;
  top: 0;
  z-index: 1;
}

.aner-rows {
  position: relative;
}

.aner-row {
  display: grid;
  grid-template-columns: var(--aner-columns);
  gap: 10px;
  height: 28px;
  align-items: center;
  padding: 0 8px;
}

.aner-rows > .aner-row {
  position: absolute;
  left: 0;
  right: 0;
  cursor: default;
}

.aner-head {
  background: var(--aner-back-2);
  border-bottom: 1px solid var(--aner-line);
  font-weight: 600;
}

.aner-head button {
  all: unset;
  cursor: pointer;
}

.aner-head button:focus-visible {
  outline: 2px solid var(--aner-accent);
}

.aner-head [aria-sort="ascending"] button::after {
  content: " ↑";
}

.aner-head [aria-sort="descending"] button::after {
  content: " ↓";
}

.aner-cell {
  overflow: hidden;
  text-overflow: ellipsis;
  white-space: nowrap;
}

.aner-right {
  text-align: right;
  font-variant-numeric: tabular-nums;
}

.aner-rows > .aner-row:hover {
  background: var(--aner-back-2);
}

.aner-rows > .aner-row[aria-selected="true"] {
  background: var(--aner-accent-back);
}

.aner-grid:focus .aner-active {
  outline: 2px solid var(--aner-accent);
  outline-offset: -2px;
}

@container (max-width: 640px) {
  .aner-row {
    grid-template-columns: var(--aner-columns-narrow);
  }

  .aner-cell.aner-wide {
    display: none;
  }
}
`,""]),a.d(r,{},{A:i})},646(e,r,a){var n=a(601),t=a.n(n),o=a(314),i=a.n(o),c=a(95),l=i()(t());l.i(c.A),l.push([e.id,`.aner-report {
  overflow: auto;
  padding: 16px 20px;
  color: var(--jp-ui-font-color0);
  background: var(--jp-layout-color1);
}

.aner-report .aner {
  border: 0;
  max-width: 76rem;
}

.aner-report h1 {
  font-size: 1.5em;
  margin: 0 0 4px;
  overflow-wrap: anywhere;
}

.aner-report h2 {
  font-size: 1.15em;
  margin: 20px 0 6px;
}

.aner-report-scroll {
  overflow-x: auto;
}

.aner-report table {
  border-collapse: collapse;
  font-variant-numeric: tabular-nums;
}

.aner-report caption {
  text-align: left;
  color: var(--aner-quiet);
  padding-bottom: 4px;
}

.aner-report th,
.aner-report td {
  padding: 4px 10px;
  border-bottom: 1px solid var(--aner-line);
  text-align: left;
  vertical-align: top;
}

.aner-report td {
  white-space: nowrap;
}

.aner-report tbody td:nth-child(2),
.aner-report td[colspan] {
  white-space: normal;
  overflow-wrap: anywhere;
}

.aner-report-range {
  color: var(--aner-quiet);
}

.aner-report thead th {
  background: var(--aner-back-2);
}

.aner-report-span {
  display: block;
  height: 4px;
  min-width: 1px;
  margin-top: 3px;
  background: var(--aner-accent);
}

.aner-report-differs {
  color: var(--aner-bad);
  font-weight: 600;
}

.aner-report .aner-bar {
  margin: 8px 0;
}
`,""]),a.d(r,{},{A:l})},314(e){e.exports=function(e){var r=[];return r.toString=function(){return this.map(function(r){var a="",n=void 0!==r[5];return r[4]&&(a+="@supports (".concat(r[4],") {")),r[2]&&(a+="@media ".concat(r[2]," {")),n&&(a+="@layer".concat(r[5].length>0?" ".concat(r[5]):""," {")),a+=e(r),n&&(a+="}"),r[2]&&(a+="}"),r[4]&&(a+="}"),a}).join("")},r.i=function(e,a,n,t,o){"string"==typeof e&&(e=[[null,e,void 0]]);var i={};if(n)for(var c=0;c<this.length;c++){var l=this[c][0];null!=l&&(i[l]=!0)}for(var p=0;p<e.length;p++){var d=[].concat(e[p]);n&&i[d[0]]||(void 0!==o&&(void 0===d[5]||(d[1]="@layer".concat(d[5].length>0?" ".concat(d[5]):""," {").concat(d[1],"}")),d[5]=o),a&&(d[2]&&(d[1]="@media ".concat(d[2]," {").concat(d[1],"}")),d[2]=a),t&&(d[4]?(d[1]="@supports (".concat(d[4],") {").concat(d[1],"}"),d[4]=t):d[4]="".concat(t)),r.push(d))}},r}},601(e){e.exports=function(e){return e[1]}},665(e,r,a){a.r(r);var n=a(72),t=a.n(n),o=a(825),i=a.n(o),c=a(659),l=a.n(c),p=a(56),d=a.n(p),s=a(540),u=a.n(s),f=a(113),b=a.n(f),v=a(646),h={};h.styleTagTransform=b(),h.setAttributes=d(),h.insert=l().bind(null,"head"),h.domAPI=i(),h.insertStyleElement=u(),t()(v.A,h);let m=v.A&&v.A.locals?v.A.locals:void 0;a.d(r,{},{default:m})},72(e){var r=[];function a(e){for(var a=-1,n=0;n<r.length;n++)if(r[n].identifier===e){a=n;break}return a}function n(e,n){for(var t={},o=[],i=0;i<e.length;i++){var c=e[i],l=n.base?c[0]+n.base:c[0],p=t[l]||0,d="".concat(l," ").concat(p);t[l]=p+1;var s=a(d),u={css:c[1],media:c[2],sourceMap:c[3],supports:c[4],layer:c[5]};if(-1!==s)r[s].references++,r[s].updater(u);else{var f=function(e,r){var a=r.domAPI(r);return a.update(e),function(r){r?(r.css!==e.css||r.media!==e.media||r.sourceMap!==e.sourceMap||r.supports!==e.supports||r.layer!==e.layer)&&a.update(e=r):a.remove()}}(u,n);n.byIndex=i,r.splice(i,0,{identifier:d,updater:f,references:1})}o.push(d)}return o}e.exports=function(e,t){var o=n(e=e||[],t=t||{});return function(e){e=e||[];for(var i=0;i<o.length;i++){var c=a(o[i]);r[c].references--}for(var l=n(e,t),p=0;p<o.length;p++){var d=a(o[p]);0===r[d].references&&(r[d].updater(),r.splice(d,1))}o=l}}},659(e){var r={};e.exports=function(e,a){var n=function(e){if(void 0===r[e]){var a=document.querySelector(e);if(window.HTMLIFrameElement&&a instanceof window.HTMLIFrameElement)try{a=a.contentDocument.head}catch(e){a=null}r[e]=a}return r[e]}(e);if(!n)throw Error("Couldn't find a style target. This probably means that the value for the 'insert' parameter is invalid.");n.appendChild(a)}},540(e){e.exports=function(e){var r=document.createElement("style");return e.setAttributes(r,e.attributes),e.insert(r,e.options),r}},56(e,r,a){e.exports=function(e){var r=a.nc;r&&e.setAttribute("nonce",r)}},825(e){e.exports=function(e){if("u"<typeof document)return{update:function(){},remove:function(){}};var r=e.insertStyleElement(e);return{update:function(a){var n,t,o;n="",a.supports&&(n+="@supports (".concat(a.supports,") {")),a.media&&(n+="@media ".concat(a.media," {")),(t=void 0!==a.layer)&&(n+="@layer".concat(a.layer.length>0?" ".concat(a.layer):""," {")),n+=a.css,t&&(n+="}"),a.media&&(n+="}"),a.supports&&(n+="}"),(o=a.sourceMap)&&"u">typeof btoa&&(n+="\n/*# sourceMappingURL=data:application/json;base64,".concat(btoa(unescape(encodeURIComponent(JSON.stringify(o))))," */")),e.styleTagTransform(n,r,e.options)},remove:function(){var e;null===(e=r).parentNode||e.parentNode.removeChild(e)}}}},113(e){e.exports=function(e,r){if(r.styleSheet)r.styleSheet.cssText=e;else{for(;r.firstChild;)r.removeChild(r.firstChild);r.appendChild(document.createTextNode(e))}}}}]);