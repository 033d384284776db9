// JupyterLab takes every cell for Python. This extension makes C++ of a cell that begins with
// %%kernel: colours, brackets that match, indentation. `make notebooks` loads it. It is written by
// hand in the form that webpack's module federation loads, so that nothing has to be built.
(() => {
  let scope; // what JupyterLab shares: name -> version -> {get}
  const shared = async (name) => (await Object.values(scope[name])[0].get())();

  async function plugin() {
    const { Compartment, EditorState, Prec } = await shared("@codemirror/state");
    const { indentService } = await shared("@codemirror/language");
    const { EditorExtensionRegistry, IEditorExtensionRegistry, IEditorLanguageRegistry } =
      await shared("@jupyterlab/codemirror");

    async function activate(app, extensions, languages) {
      const { support } = await languages.getLanguage("C++");
      const indent = indentService.of(
        ({ state }, at) => (state.doc.lineAt(at).number === 1 ? 0 : undefined), // below the magic
      );
      const cpp = Prec.highest([indent, support]); // before Python, which other cells keep
      const languageOf = (text) => (text.startsWith("%%kernel") ? cpp : null);

      function factory({ model }) {
        const language = new Compartment();
        const follow = EditorState.transactionExtender.of((change) => {
          const documents = [change.startState.doc, change.newDoc];
          const [before, now] = documents.map((text) => languageOf(text.line(1).text));
          return before === now ? null : { effects: language.reconfigure(now ?? []) };
        });
        const first = language.of(languageOf(model.sharedModel.getSource()) ?? []);
        return EditorExtensionRegistry.createImmutableExtension([first, follow]);
      }
      extensions.addExtension({ name: "kernel-cells", factory });
    }
    const requires = [IEditorExtensionRegistry, IEditorLanguageRegistry];
    return { id: "kernel-cells:language", autoStart: true, requires, activate };
  }

  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB["kernel-cells"] = {
    init: (given) => void (scope = given),
    get: async () => {
      const found = await plugin();
      return () => ({ __esModule: true, default: found });
    },
  };
})();
