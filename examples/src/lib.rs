//! The programs are in `src/bin`. Here are the pages of `docs/` that need more than the library itself: their code is compiled
//! and run with that of the programs.

#[cfg(doctest)]
#[doc = include_str!("../../docs/tutorial.md")]
pub struct Tutorial;

#[cfg(doctest)]
#[doc = include_str!("../../docs/handlers-guide.md")]
pub struct HandlersGuide;

#[cfg(doctest)]
#[doc = include_str!("../../docs/testing.md")]
pub struct Testing;

#[cfg(doctest)]
#[doc = include_str!("../../docs/eval.md")]
pub struct Evaluations;

#[cfg(doctest)]
#[doc = include_str!("../../docs/mcp.md")]
pub struct Mcp;

#[cfg(doctest)]
#[doc = include_str!("../../docs/mcp-server.md")]
pub struct McpServer;

#[cfg(doctest)]
#[doc = include_str!("../../docs/deploy.md")]
pub struct Deploy;

#[cfg(doctest)]
#[doc = include_str!("../../docs/migrate/google-adk.md")]
pub struct FromGoogleAdk;

#[cfg(doctest)]
#[doc = include_str!("../../docs/migrate/eino.md")]
pub struct FromEino;

#[cfg(doctest)]
#[doc = include_str!("../../docs/migrate/langchain.md")]
pub struct FromLangChain;

#[cfg(doctest)]
#[doc = include_str!("../../llms.txt")]
pub struct ForAssistants;

#[cfg(doctest)]
#[doc = include_str!("../../docs/studio.md")]
pub struct Studio;

#[cfg(doctest)]
#[doc = include_str!("../../docs/oauth.md")]
pub struct SignIn;

#[cfg(doctest)]
#[doc = include_str!("../../docs/telemetry.md")]
pub struct TelemetryPage;
