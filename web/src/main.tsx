import "./styles/base.css";
import "./styles/shell.css";
import "./styles/chat.css";
import "./styles/markdown.css";
import "./styles/requests.css";
import "./styles/dashboard.css";
import "./theme";
import { render } from "preact";
import { App } from "./app";
import { load } from "./store";

render(<App />, document.getElementById("app")!);
void load();
