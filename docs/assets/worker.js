// Browsers start no worker from a plain file: there, the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.title = "search";
      document.body.appendChild(frame);
      const inside = frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const load = (source) =>
        new Promise((resolve, reject) => {
          const script = inside.document.createElement("script");
          script.src = source;
          script.onload = resolve;
          script.onerror = reject;
          inside.document.body.appendChild(script);
        });
      inside.importScripts = (...sources) => Promise.all(sources.map(load));
      this.send = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(url);
    }
    postMessage(data) {
      this.ready.then(() => this.send(data));
    }
    terminate() {}
  };
}
