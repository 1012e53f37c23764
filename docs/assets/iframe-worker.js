// Browsers start no worker from the disk. There, a worker's script runs in a hidden frame, so that
// the manual can be searched without a server.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      const inner = frame.contentWindow;
      // what the script posts arrives here
      inner.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      };
      const load = (source) => new Promise((resolve, reject) => {
        const script = inner.document.createElement("script");
        script.src = source;
        script.onload = resolve;
        script.onerror = reject;
        inner.document.documentElement.append(script);
      });
      inner.importScripts = (...sources) => Promise.all(sources.map(load));
      this._frame = frame;
      this._loaded = load(new URL(url, document.baseURI).href).then(() => inner);
    }

    postMessage(data) {
      this._loaded.then((inner) => {
        inner.dispatchEvent(new inner.MessageEvent("message", { data }));
      });
    }

    terminate() {
      this._frame.remove();
    }
  };
}
