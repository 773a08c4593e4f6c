//! OpenTelemetry for Umbel: traces and metrics of runs, by the conventions for generative AI, sent by OTLP over HTTP.
//!
//! Runs have spans anyway, made with `tracing`; here they become OpenTelemetry's. So the tree of spans is the tree of the run,
//! and whatever else a program traces can stand in it.
//!
//! ```
//! use std::time::Duration;
//!
//! use tracing_subscriber::layer::SubscriberExt;
//! use umbel_telemetry::Telemetry;
//!
//! let exporting = Telemetry::new("travel-desk").otlp("http://localhost:4318").build()?;
//! let subscriber = tracing_subscriber::registry().with(exporting.layer());
//! // With `subscriber.init()` all runs of the process are told of. At its end:
//! exporting.shutdown(Duration::from_secs(5));
//! # drop(subscriber);
//! # Ok::<(), umbel_core::Error>(())
//! ```
//!
//! # Layout
//! - [`Telemetry`], [`Exporting`]: how it is set up, and what is handed to `tracing`
//! - `shape`: spans as the conventions want them; `measure`: metrics, from the same spans; `content`: what was said, if it is
//!   to be told; `tracer`: which trace requests are part of; `collector`: where all of it goes
//!
//! What nobody asked for is not sent: prompts, answers, arguments and results are content, and stay out of spans unless
//! [`ContentCapture`] is given. Names are in [`umbel_core::conventions`].

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic))]

mod collector;
mod content;
mod environment;
mod measure;
mod shape;
mod telemetry;
mod tracer;

pub use content::ContentCapture;
/// For exporters of your own.
pub use {opentelemetry, opentelemetry_sdk};

pub use telemetry::{Conventions, Exporting, Telemetry};
