// A chat with three agents of `umbel serve`: one with tools of its own, one that asks before it acts, and one that uses
// tools of this page.

import { useState } from "react";
import { createRoot } from "react-dom/client";
import {
  CopilotChat,
  CopilotKitProvider,
  useFrontendTool,
  useInterrupt,
  useRenderTool,
} from "@copilotkit/react-core/v2";
import { z } from "zod";
import "@copilotkit/react-core/v2/styles.css";
import "./app.css";

const AGENTS = {
  guide: "Weather in Paris and Rome",
  booking: "Book 3 nights in Lisbon",
  painter: "Make it dark",
};

/** A tool that runs in Umbel: the page only shows what it did. */
function useWeatherCard() {
  useRenderTool({
    name: "get_weather",
    parameters: z.object({ city: z.string() }),
    render: ({ status, parameters, result }) => {
      if (status !== "complete") {
        return <div className="card">Looking at the sky over {parameters?.city ?? "…"}</div>;
      }
      const { city, sky, celsius } = JSON.parse(result);
      return (
        <div className="card" data-testid="weather">
          <strong>{city}</strong> {sky}, {celsius} °C
        </div>
      );
    },
  });
}

/** A tool that runs here: the agent asks, the page does it and says what came of it. */
function useTheme() {
  const [theme, setTheme] = useState("light");
  useFrontendTool({
    name: "set_theme",
    description: "Makes the page dark or light.",
    parameters: z.object({ theme: z.enum(["dark", "light"]) }),
    handler: async ({ theme: wanted }) => {
      setTheme(wanted);
      return { theme: wanted };
    },
    render: ({ args, status }) => (
      <div className="card" data-testid="theme">
        {status === "complete" ? "The page is" : "The page becomes"} {args.theme}
      </div>
    ),
  });
  return theme;
}

/** A question of the agent's: the run waits in Umbel until somebody answers. */
function useApproval(agentId) {
  useInterrupt({
    agentId,
    render: ({ interrupt, resolve, cancel }) => (
      <div className="card" role="group" aria-label="Approval" data-testid="approval">
        <p>{interrupt.message}</p>
        <button type="button" onClick={() => resolve({ approved: true })}>
          Approve
        </button>
        <button type="button" onClick={() => cancel()}>
          Refuse
        </button>
      </div>
    ),
  });
}

function Chat({ agentId }) {
  useApproval(agentId);
  const labels = { welcomeMessageText: `Try: ${AGENTS[agentId]}`, chatInputPlaceholder: "Say something" };
  return <CopilotChat agentId={agentId} labels={labels} />;
}

function Page() {
  const [agentId, setAgentId] = useState("guide");
  useWeatherCard();
  const theme = useTheme();
  return (
    <div className={`page ${theme}`} data-theme={theme}>
      <header>
        <h1>Umbel with CopilotKit</h1>
        <nav aria-label="Agents">
          {Object.keys(AGENTS).map((name) => (
            <button key={name} type="button" aria-pressed={name === agentId} onClick={() => setAgentId(name)}>
              {name}
            </button>
          ))}
        </nav>
      </header>
      <main>
        <Chat key={agentId} agentId={agentId} />
      </main>
    </div>
  );
}

createRoot(document.getElementById("app")).render(
  <CopilotKitProvider runtimeUrl="/api/copilotkit">
    <Page />
  </CopilotKitProvider>,
);
