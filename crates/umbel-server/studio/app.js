// Lists the agents, each as a link to what it can do.
const list = document.getElementById("agents");
const { agents } = await (await fetch("../agents")).json();
for (const agent of agents) {
  const link = document.createElement("a");
  link.href = `${agent.path}/capabilities`;
  link.textContent = agent.name;
  const item = document.createElement("li");
  item.append(link, agent.description ? `: ${agent.description}` : "");
  list.append(item);
}
