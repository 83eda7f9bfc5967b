//! The list of what the installed files were built from (SBOM), as an SPDX 2.3 document.
//!
//! Each product depends on its crates; those of others have the checksum that `Cargo.lock` pins. Dependencies of
//! tests and of other systems are left out. The list is the same for each processor, as packages that are installed together want it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::Result;
use crate::workspace::{Workspace, cargo, output, root};

/// Any of those that the project is for: without one, cargo would fetch the crates of other systems.
const PLATFORM: &str = "x86_64-unknown-linux-gnu";

/// The text of the document.
pub(crate) fn document(workspace: &Workspace) -> Result<String> {
    let mut command = cargo();
    command.args(["metadata", "--locked", "--format-version", "1"]);
    let text = output(command.args(["--filter-platform", PLATFORM]))?;
    let metadata: Value = serde_json::from_str(&text)?;
    let lock = std::fs::read_to_string(root().join("Cargo.lock"))?;
    let document = described(
        &metadata,
        &checksums(&lock),
        workspace.products(),
        &created()?,
        &workspace.version,
    )?;
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn described(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
    products: Vec<String>,
    created: &str,
    version: &str,
) -> Result<Value> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata["packages"]);
    let nodes = list(&metadata["resolve"]["nodes"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let product = |package: &&Value| {
        package["source"].is_null() && products.contains(&text(&package["name"]))
    };
    let roots: Vec<String> = packages
        .iter()
        .filter(product)
        .map(|p| text(&p["id"]))
        .collect();
    if roots.len() != products.len() {
        return Err("cargo metadata does not know all products".into());
    }
    let mut edges: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut waiting = roots.clone();
    while let Some(id) = waiting.pop() {
        if edges.contains_key(&id) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id.as_str());
        let built_from = |dep: &&Value| list(&dep["dep_kinds"]).iter().any(|k| k["kind"] != "dev");
        let needed: BTreeSet<String> = list(&node.ok_or("a package without a node")?["deps"])
            .iter()
            .filter(built_from)
            .map(|dep| text(&dep["pkg"]))
            .collect();
        waiting.extend(needed.iter().cloned());
        edges.insert(id, needed);
    }
    let mut names = BTreeMap::new();
    let mut described = Vec::new();
    for package in packages
        .iter()
        .filter(|p| edges.contains_key(&text(&p["id"])))
    {
        let (name, version) = (text(&package["name"]), text(&package["version"]));
        let id = format!("SPDXRef-{}-{version}", name.replace('_', "-"));
        let licence = match package["license"].as_str() {
            Some(licence) => licence.replace('/', " OR "),
            None => "NOASSERTION".to_owned(),
        };
        let mut one = json!({
            "SPDXID": id,
            "name": name,
            "versionInfo": version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": false,
            "licenseDeclared": licence,
            "licenseConcluded": "NOASSERTION",
            "copyrightText": "NOASSERTION",
        });
        if !package["source"].is_null() {
            one["externalRefs"] = json!([{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": format!("pkg:cargo/{name}@{version}"),
            }]);
            let checksum = checksums.get(&(name.clone(), version));
            let checksum =
                checksum.ok_or_else(|| format!("Cargo.lock has no checksum of {name}"))?;
            one["checksums"] = json!([{ "algorithm": "SHA256", "checksumValue": checksum }]);
        }
        names.insert(text(&package["id"]), id);
        described.push(one);
    }
    let relation = |from: &str, kind: &str, to: &str| json!({ "spdxElementId": from, "relationshipType": kind, "relatedSpdxElement": to });
    let mut relations: Vec<Value> = roots
        .iter()
        .map(|id| relation("SPDXRef-DOCUMENT", "DESCRIBES", &names[id]))
        .collect();
    for (from, needed) in &edges {
        let depends = needed
            .iter()
            .map(|to| relation(&names[from], "DEPENDS_ON", &names[to]));
        relations.extend(depends);
    }
    Ok(json!({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": format!("vipl-{version}"),
        "documentNamespace": format!("urn:vipl:sbom:{version}:{created}"),
        "creationInfo": { "created": created, "creators": ["Tool: cargo xtask install"] },
        "packages": described,
        "relationships": relations,
    }))
}

/// Checksums of `Cargo.lock` by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let mut found = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.strip_prefix(" = \"")?.strip_suffix('"')?.to_owned())
        };
        if let (Some(name), Some(version), Some(checksum)) =
            (field("name"), field("version"), field("checksum"))
        {
            found.insert((name, version), checksum);
        }
    }
    found
}

/// The time of the document: that of the package's changelog while a package is built, so that each processor's
/// package has the same.
fn created() -> Result<String> {
    let seconds = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(given) => given.parse()?,
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs(),
    };
    Ok(date(seconds))
}

/// Seconds since 1970 as `YYYY-MM-DDThh:mm:ssZ`.
fn date(seconds: u64) -> String {
    let (mut days, rest) = (seconds / 86_400, seconds % 86_400);
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(leap(year)) {
        days -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hours, minutes, seconds) = (rest / 3600, rest / 60 % 60, rest % 60);
    let day = days + 1;
    format!("{year}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (1_798_761_600, "2027-01-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), text);
        }
    }

    #[test]
    fn products_and_what_they_need_are_listed() {
        let workspace = Workspace::load().unwrap();
        let text = document(&workspace).unwrap();
        let document: Value = serde_json::from_str(&text).unwrap();
        let packages = document["packages"].as_array().unwrap();
        let named = |name: &str| packages.iter().find(|package| package["name"] == name);
        for product in workspace.products() {
            assert!(named(&product).is_some(), "{product}");
        }
        let libc = named("libc").unwrap();
        assert_eq!(
            libc["checksums"][0]["checksumValue"]
                .as_str()
                .unwrap()
                .len(),
            64
        );
        // Programs that are not installed, and what only tests use.
        for other in ["xtask", "vipl-stress", "cbindgen"] {
            assert!(named(other).is_none(), "{other}");
        }
        let related = document["relationships"].as_array().unwrap();
        let ids: BTreeSet<_> = packages.iter().map(|p| p["SPDXID"].as_str()).collect();
        assert_eq!(ids.len(), packages.len(), "identifiers are distinct");
        assert!(
            related
                .iter()
                .all(|one| ids.contains(&one["relatedSpdxElement"].as_str()))
        );
    }
}
