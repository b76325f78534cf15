// Browsers start no worker on pages that are opened from a folder. There, the search runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inner = frame.contentWindow;
      const waiting = document.createElement("script");
      // the worker's script answers by postMessage, and loads others by importScripts
      waiting.textContent = `
        window.postMessage = data => parent.dispatchEvent(new CustomEvent("iframe-worker", { detail: data }));
        window.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, failed) => {
          const script = document.createElement("script");
          Object.assign(script, { src: url, onload: done, onerror: failed });
          document.body.appendChild(script);
        })), Promise.resolve());`;
      const script = document.createElement("script");
      script.src = url;
      this.ready = new Promise(done => { script.onload = done; });
      this.inner.document.body.append(waiting, script);
      addEventListener("iframe-worker", event => {
        const message = new MessageEvent("message", { data: event.detail });
        this.dispatchEvent(message);
        if (this.onmessage) this.onmessage(message);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {}
  };
}
