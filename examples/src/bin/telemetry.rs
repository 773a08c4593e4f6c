//! What a run did, as OpenTelemetry tells it: sent to a collector if one is named, printed otherwise.
//!
//! `cargo run -p umbel-examples --bin telemetry`, or with `OTEL_EXPORTER_OTLP_ENDPOINT=http://localhost:4318` before it.

use std::error::Error;
use std::time::Duration;

use serde_json::{Value, json};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use umbel::telemetry::Telemetry;
use umbel::telemetry::opentelemetry_sdk::error::OTelSdkResult;
use umbel::telemetry::opentelemetry_sdk::trace::{SpanData, SpanExporter};
use umbel::{LlmAgent, Runner, ScriptedModel, tool};

/// Prints spans. A program of yours would have none of this: it would name its collector.
#[derive(Debug)]
struct Printed;

impl SpanExporter for Printed {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        for span in batch {
            println!("{} ({:?})", span.name, span.span_kind);
        }
        Ok(())
    }
}

/// Tells the weather of a city.
#[tool]
async fn get_weather(city: String) -> Value {
    json!({"city": city, "celsius": 18})
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let to_collector = Telemetry::from_env("weather-desk");
    let to_screen = || Telemetry::new("weather-desk").span_exporter(Printed).without_metrics();
    let exporting = to_collector.unwrap_or_else(to_screen).build()?;
    tracing_subscriber::registry().with(exporting.layer()).init();

    let model = ScriptedModel::new("demo").call("get_weather", json!({"city": "Rome"})).text("18 °C.");
    let runner = Runner::new("demo", LlmAgent::new("weather").model(model).tool(get_weather))?;
    let session = runner.create_session("ann").await?;
    println!("weather> {}", runner.run(&session.key, "How is Rome?").text().await?);

    // What was not sent yet is sent now, in that time or not at all.
    exporting.shutdown(Duration::from_secs(5));
    Ok(())
}
