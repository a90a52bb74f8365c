// Search from disk: browsers refuse workers for file:// pages, so the worker's script runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      this.frame.contentDocument.open();
      this.frame.contentDocument.write("<body></body>");
      this.frame.contentDocument.close();
      const inside = this.frame.contentWindow;
      const pass = (data) => {
        const event = new MessageEvent("message", { data });
        if (this.onmessage) this.onmessage(event);
        this.dispatchEvent(event);
      };
      inside.postMessage = (data) => setTimeout(() => pass(data));
      inside.importScripts = (...urls) =>
        urls.reduce((before, source) => before.then(() => this.load(source)), Promise.resolve());
      this.ready = this.load(url);
    }
    load(source) {
      return new Promise((resolve, reject) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = String(source);
        script.onload = resolve;
        script.onerror = reject;
        this.frame.contentDocument.body.appendChild(script);
      });
    }
    postMessage(data) {
      this.ready.then(() => {
        const inside = this.frame.contentWindow;
        const event = new MessageEvent("message", { data });
        if (inside.onmessage) inside.onmessage(event);
        inside.dispatchEvent(event);
      });
    }
    terminate() {
      this.frame.remove();
    }
  };
}
