//! Spans as the conventions want them. What `tracing` cannot say is said here: names with what they are about, kinds, lists,
//! and the status.

use std::borrow::Cow;
use std::time::Duration;

use opentelemetry::trace::{SpanKind, Status};
use opentelemetry::{Array, KeyValue, StringValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter};
use umbel_core::conventions::{OTHER, attribute, span};

use crate::content::in_words;

/// Gives spans their shape on their way out, where nobody waits for it.
#[derive(Debug)]
pub(crate) struct Shaped<E>(pub(crate) E);

impl<E: SpanExporter> SpanExporter for Shaped<E> {
    async fn export(&self, mut batch: Vec<SpanData>) -> OTelSdkResult {
        batch.iter_mut().for_each(shape);
        self.0.export(batch).await
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

fn shape(data: &mut SpanData) {
    keep_last(&mut data.attributes);
    let text = |name: &str| {
        let found = data.attributes.iter().find(|attribute| attribute.key.as_str() == name);
        found.map(|attribute| attribute.value.as_str().into_owned())
    };
    // A span of somebody else may have the same name.
    let is_ours =
        |about: Option<String>| text(attribute::OPERATION).filter(|name| *name == data.name).and(about);
    let (about, kind) = match data.name.as_ref() {
        span::CHAT => (is_ours(text(attribute::REQUEST_MODEL)), SpanKind::Client),
        span::INVOKE_AGENT => (is_ours(text(attribute::AGENT)), SpanKind::Internal),
        span::INVOKE_WORKFLOW => (is_ours(text(attribute::WORKFLOW)), SpanKind::Internal),
        span::EXECUTE_TOOL => (is_ours(text(attribute::TOOL)), SpanKind::Internal),
        span::HTTP => (text(attribute::HTTP_METHOD), SpanKind::Server),
        _ => (None, SpanKind::Internal),
    };
    if let Some(about) = about {
        data.name = match data.name.as_ref() {
            span::HTTP => {
                let method = if about == OTHER { "HTTP" } else { &about };
                Cow::Owned(match text(attribute::HTTP_ROUTE) {
                    Some(route) => format!("{method} {route}"),
                    None => method.to_owned(),
                })
            }
            operation => Cow::Owned(format!("{operation} {about}")),
        };
        data.span_kind = kind;
    }
    if data.status == Status::Unset && text(attribute::ERROR).is_some() {
        data.status = Status::error("");
    }
    for attribute in &mut data.attributes {
        if let Some(list) = listed(attribute) {
            attribute.value = Value::Array(Array::String(list));
        }
    }
}

/// What is a list by the conventions, and one text as a field.
fn listed(attribute: &KeyValue) -> Option<Vec<StringValue>> {
    let Value::String(text) = &attribute.value else { return None };
    match attribute.key.as_str() {
        attribute::FINISH_REASONS => Some(vec![in_words(text.as_str()).into()]),
        attribute::STOP_SEQUENCES => {
            let texts: Vec<String> = serde_json::from_str(text.as_str()).ok()?;
            Some(texts.into_iter().map(StringValue::from).collect())
        }
        _ => None,
    }
}

/// What is recorded twice counts as it was recorded last: an attribute has one value.
fn keep_last(attributes: &mut Vec<KeyValue>) {
    let mut kept: Vec<KeyValue> = Vec::with_capacity(attributes.len());
    for attribute in attributes.drain(..) {
        match kept.iter_mut().find(|earlier| earlier.key == attribute.key) {
            Some(earlier) => earlier.value = attribute.value,
            None => kept.push(attribute),
        }
    }
    *attributes = kept;
}
