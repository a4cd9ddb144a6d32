//! Untrusted clients may send anything to a port of the controller, from any number of addresses.

use crate::{
    programs::free_address,
    world::{World, tell},
};
use k8s_openapi::ByteString;
use serde_json::{Value, json};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpSocket, TcpStream},
    runtime::Runtime,
    time::{sleep, timeout},
};
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};

/// Maximum memory of the controller in MiB. It needs half of it, or more, without a flood.
const MOST: u64 = 72;

/// Duration of a flood.
const LONG: Duration = Duration::from_secs(8);

/// Timeout of a probe, and number of consecutive late probes for which kubelet would kill a program. A single probe may
/// be late on a busy machine.
const PROBE: Duration = Duration::from_secs(1);
const LATE: usize = 3;

/// The controller's ports.
pub struct Ports {
    probes: SocketAddr,
    pub webhooks: SocketAddr,
}

/// Starts a controller that serves webhooks, and waits until it does.
pub fn serve(world: &mut World) -> Result<Ports, String> {
    let ports = Ports {
        probes: free_address(),
        webhooks: free_address(),
    };
    world.make(
        "Secret",
        json!({"metadata": {"name": "flexvol-webhook", "namespace": "flexvol"}}),
    );
    let [probes, webhooks] = [
        format!("--listen={}", ports.probes),
        format!("--webhooks={}", ports.webhooks),
    ];
    world.node("node");
    world.start_controller(&["--rate=1000", &probes, &webhooks]);
    world.start_agent("node", &[]);
    world.eventually("a certificate to be there", |world| {
        authority(world).is_some()
    })?;
    Ok(ports)
}

fn authority(world: &World) -> Option<CertificateDer<'static>> {
    let secret = world.get("Secret", "flexvol", "flexvol-webhook");
    let pem: ByteString = serde_json::from_value(secret["data"]["ca.crt"].clone()).ok()?;
    CertificateDer::from_pem_slice(&pem.0).ok()
}

/// A TLS connector with the API servers' trust.
pub fn connector(world: &World) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(authority(world).unwrap()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

/// Connects from one of this machine's own addresses, as from a pod's.
async fn connect(from: u8, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(([127, 0, 0, from], 0).into())?;
    socket.connect(to).await
}

async fn secured(
    connector: &TlsConnector,
    from: u8,
    to: SocketAddr,
) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("flexvol-webhook.flexvol.svc").unwrap();
    connector.connect(name, connect(from, to).await?).await
}

/// Returns the response to a request, with its head.
pub async fn asked(
    connector: &TlsConnector,
    from: u8,
    to: SocketAddr,
    path: &str,
    body: &str,
) -> std::io::Result<String> {
    let mut stream = secured(connector, from, to).await?;
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    let mut answer = String::new();
    // A peer may close without a TLS close notification.
    let _ = stream.read_to_string(&mut answer).await;
    Ok(answer)
}

/// Requests of almost a mebibyte, which take many times as much in memory once they are parsed.
fn large() -> Vec<(&'static str, String)> {
    let question =
        |object: &str| format!(r#"{{"request":{{"uid":"u","object":{object},"oldObject":{{}}}}}}"#);
    let many = |one: &str, bytes: usize| vec![one; bytes / (one.len() + 1)].join(",");
    let most = 1_040_000;
    let deep = format!(r#"{{"a":[{}]}}"#, many("[[[[[[[[]]]]]]]]", most));
    let wide = format!(r#"{{"a":[{}]}}"#, many("{}", most));
    let named = {
        let pairs: Vec<_> = (0..most / 12).map(|n| format!(r#""{n:x}":{{}}"#)).collect();
        format!(
            r#"{{"spec":{{"selector":{{"matchLabels":{{{}}}}}}}}}"#,
            pairs.join(",")
        )
    };
    let annotated = {
        let pairs: Vec<_> = (0..most / 30)
            .map(|n| format!(r#""grow.flexvol.dev/{n:x}":"1Gi""#))
            .collect();
        format!(
            r#"{{"metadata":{{"annotations":{{{}}}}}}}"#,
            pairs.join(",")
        )
    };
    let claims = format!(r#"{{"status":{{"conditions":[{}]}}}}"#, many("{}", most));
    let templates = format!(
        r#"{{"spec":{{"volumeClaimTemplates":[{}]}}}}"#,
        many("{}", most)
    );
    let open = format!("{}1", "[".repeat(most));
    let unended = format!(r#"{{"request":{}"#, "[".repeat(most));
    vec![
        ("/sets", question(&deep)),
        ("/claims", question(&wide)),
        ("/sets", question(&named)),
        ("/templates", question(&annotated)),
        ("/claims", question(&claims)),
        ("/templates", question(&templates)),
        ("/claims", open),
        ("/sets", unended),
    ]
}

pub fn questions() {
    tell(World::start(), |world| {
        let ports = serve(world)?;
        let (connector, runtime) = (connector(world), Runtime::new().unwrap());
        let (questions, answered) = (Arc::new(large()), Arc::new(AtomicUsize::new(0)));
        for number in 0..64_usize {
            let (connector, to) = (connector.clone(), ports.webhooks);
            let (questions, answered) = (Arc::clone(&questions), Arc::clone(&answered));
            runtime.spawn(async move {
                let from = 2 + u8::try_from(number % 8).unwrap();
                for (path, body) in questions.iter().cycle().skip(number) {
                    if asked(&connector, from, to, path, body).await.is_ok() {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        world.claim("data", "plain");
        let begun = Instant::now();
        world.eventually("a claim to be bound meanwhile", |world| {
            world.is_bound("data") && begun.elapsed() > LONG
        })?;
        drop(runtime);
        let most = world.memory("controller", "VmHWM:") >> 10;
        let answered = answered.load(Ordering::Relaxed);
        println!("flexvol-controller: {most} MiB beside {answered} large questions");
        assert!(answered > 40, "{answered} questions are no flood");
        assert!(most <= MOST, "the controller needs {most} MiB");
        edited(&connector, &ports)
    });
}

/// Checks that reviews still work.
fn edited(connector: &TlsConnector, ports: &Ports) -> Result<(), String> {
    let set = |size: &str| {
        json!({
            "metadata": {
                "name": "db", "namespace": "default",
                "managedFields": vec![json!({"manager": "x".repeat(999)}); 1500],
            },
            "spec": {
                "serviceName": "db", "selector": {}, "template": {"spec": {"containers": []}},
                "volumeClaimTemplates": [
                    {"metadata": {"name": "other"}, "spec": {}},
                    {"metadata": {"name": "data"}, "spec": {
                        "storageClassName": "plain", "resources": {"requests": {"storage": size}},
                    }},
                ],
            },
        })
    };
    let request = json!({"uid": "u-1", "object": set("20Mi"), "oldObject": set("10Mi")});
    let question = json!({"request": request}).to_string();
    assert!(
        question.len() > 2 << 20,
        "two objects, almost as large as etcd takes them"
    );
    let runtime = Runtime::new().unwrap();
    let answer = asked(connector, 1, ports.webhooks, "/templates", &question);
    let answer = runtime
        .block_on(answer)
        .map_err(|error| error.to_string())?;
    let body = answer.split("\r\n\r\n").nth(1).unwrap_or_default();
    let answer: Value = serde_json::from_str(body).map_err(|error| format!("{error}: {answer}"))?;
    let patch: ByteString = serde_json::from_value(answer["response"]["patch"].clone()).unwrap();
    let patch: Value = serde_json::from_slice(&patch.0).unwrap();
    assert_eq!(
        patch,
        json!([
            {
                "op": "replace", "value": "10Mi",
                "path": "/spec/volumeClaimTemplates/1/spec/resources/requests/storage",
            },
            {"op": "add", "path": "/metadata/annotations", "value": {}},
            {"op": "add", "path": "/metadata/annotations/grow.flexvol.dev~1data", "value": "20Mi"},
        ])
    );
    Ok(())
}

/// Holds a connection, silent or with a partial request, and reconnects whenever it is closed.
async fn hold(from: u8, to: SocketAddr, says: &'static [u8]) {
    loop {
        if let Ok(mut stream) = connect(from, to).await {
            let _ = stream.write_all(says).await;
            let mut answer = [0; 999];
            while matches!(stream.read(&mut answer).await, Ok(1..)) {}
        }
        sleep(Duration::from_millis(20)).await;
    }
}

async fn probe(to: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = connect(1, to).await?;
    let head = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let mut said = String::new();
    stream.read_to_string(&mut said).await?;
    Ok(said)
}

pub fn connections() {
    tell(World::start(), |world| {
        let ports = serve(world)?;
        let runtime = Runtime::new().unwrap();
        let ready = async || matches!(probe(ports.probes, "/readyz").await, Ok(said) if said.starts_with("HTTP/1.1 200"));
        world.eventually("it to be ready", |_| runtime.block_on(ready()))?;
        let says: [&'static [u8]; 3] = [
            b"",
            b"GET /metrics HTTP/1.1\r\n",
            b"GET /metrics HTTP/1.1\r\n\r\n",
        ];
        for from in 2..14 {
            let says = says[usize::from(from) % says.len()];
            for to in [ports.probes, ports.webhooks] {
                // Together they exceed the number of slots.
                for _ in 0..16 {
                    runtime.spawn(hold(from, to, says));
                }
            }
        }
        let (begun, mut probes, mut late, mut slowest) = (Instant::now(), 0, 0, Duration::ZERO);
        while begun.elapsed() < LONG {
            for path in ["/healthz", "/readyz"] {
                let asked = Instant::now();
                let said = async { timeout(PROBE, probe(ports.probes, path)).await };
                match runtime.block_on(said) {
                    Ok(Ok(said)) if said.starts_with("HTTP/1.1 200") => late = 0,
                    Ok(said) => return Err(format!("probe {probes}, {path}: {said:?}")),
                    Err(_) if late + 1 < LATE => late += 1,
                    Err(_) => return Err(format!("{LATE} probes were not answered in time")),
                }
                (probes, slowest) = (probes + 1, slowest.max(asked.elapsed()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        runtime.shutdown_background();
        println!("{probes} probes were answered, the slowest after {slowest:?}");
        assert!(probes > 10, "{probes} probes tell nothing");
        Ok(())
    });
}

/// Pods ask small questions without end, each from its own address. The API server asks too.
pub fn small_questions() {
    const PODS: u8 = 4;
    const EDITS: usize = 8;
    tell(World::start(), |world| {
        let ports = serve(world)?;
        world.claim("data", "plain");
        world.eventually("the claim to be bound", |world| world.is_bound("data"))?;
        let annotations = json!({"flexvol.dev/largest": "15Mi"});
        world.class(
            "limited",
            &json!({"metadata": {"name": "limited", "annotations": annotations}}),
        );
        let claim = |size: &str| {
            let mut claim = world.the_claim("data");
            claim["spec"]["storageClassName"] = "limited".into();
            claim["spec"]["resources"]["requests"]["storage"] = size.into();
            claim
        };
        let request = json!({"uid": "u-1", "object": claim("20Mi"), "oldObject": claim("10Mi")});
        let question = Arc::new(json!({"request": request}).to_string());
        let (connector, runtime) = (connector(world), Runtime::new().unwrap());
        let answered = Arc::new(AtomicUsize::new(0));
        for number in 0..12 * PODS {
            let (connector, to) = (connector.clone(), ports.webhooks);
            let (question, answered) = (Arc::clone(&question), Arc::clone(&answered));
            runtime.spawn(async move {
                loop {
                    let answer = asked(&connector, 2 + number % PODS, to, "/claims", &question);
                    answered.fetch_add(usize::from(answer.await.is_ok()), Ordering::Relaxed);
                }
            });
        }
        let begun = Instant::now();
        world.eventually("the flood", |_| begun.elapsed() > Duration::from_secs(3))?;
        let refused = (0..EDITS).filter(|_| {
            let answer = asked(&connector, 1, ports.webhooks, "/claims", &question);
            runtime
                .block_on(answer)
                .is_ok_and(|answer| answer.contains("allows at most"))
        });
        assert_eq!(refused.count(), EDITS, "each is judged in time");
        let answered = answered.load(Ordering::Relaxed);
        assert!(answered > 20, "{answered} questions are no flood");
        Ok(())
    });
}
