//! Gemini on Vertex: the same format, at the place of a project.

use std::sync::Arc;

use umbel_core::{Error, ErrorKind, Result};

use crate::endpoint::{Endpoint, Key};
use crate::http_model::HttpModel;

use super::{Gemini, GoogleCredentials, Vertex};

/// A model on Vertex, as the environment says.
pub(crate) fn model(name: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<HttpModel> {
    let credentials = GoogleCredentials::find(environment)?;
    let project = environment("GOOGLE_CLOUD_PROJECT").or_else(|| credentials.project().map(str::to_owned));
    let project = project.ok_or_else(|| {
        let hint = "set the environment variable GOOGLE_CLOUD_PROJECT";
        Error::new(ErrorKind::Build, format!("`vertex/{name}` needs the name of a project: {hint}"))
    })?;
    let location = environment("GOOGLE_CLOUD_LOCATION").unwrap_or_else(|| "global".to_owned());
    for part in [&project, &location] {
        // They become part of the address that tokens are sent to.
        if !part.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | ':' | '.')) {
            let message = format!("`{part}` cannot be the name of a project or a location");
            return Err(Error::new(ErrorKind::Build, message));
        }
    }
    let base = environment("GOOGLE_VERTEX_BASE_URL").unwrap_or_else(|| base(&location));
    let mut endpoint = Endpoint::new("vertex", base);
    endpoint.key = Key::Source(Arc::new(credentials));
    HttpModel::new(name, Gemini::on_vertex(name, Vertex { project, location }), endpoint)
}

/// Where a location is served.
fn base(location: &str) -> String {
    match location {
        "global" => "https://aiplatform.googleapis.com/v1".to_owned(),
        "us" | "eu" => format!("https://aiplatform.{location}.rep.googleapis.com/v1"),
        _ => format!("https://{location}-aiplatform.googleapis.com/v1"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_location_has_its_address() {
        assert_eq!(base("global"), "https://aiplatform.googleapis.com/v1");
        assert_eq!(base("eu"), "https://aiplatform.eu.rep.googleapis.com/v1");
        assert_eq!(base("europe-west4"), "https://europe-west4-aiplatform.googleapis.com/v1");
    }

    #[test]
    fn a_model_without_a_project_or_in_a_strange_place_is_refused() {
        let said = |project: Option<&str>, location: &str| {
            let environment = |variable: &str| match variable {
                "GOOGLE_CLOUD_PROJECT" => project.map(str::to_owned),
                "GOOGLE_CLOUD_LOCATION" => Some(location.to_owned()),
                _ => None,
            };
            model("gemini-3-pro", &environment).map_err(|error| error.message().to_owned())
        };
        assert!(said(None, "global").unwrap_err().contains("GOOGLE_CLOUD_PROJECT"));
        assert!(said(Some("p"), "evil.example/").unwrap_err().contains("evil.example/"));
        assert!(said(Some("p"), "us-central1").is_ok());
    }
}
