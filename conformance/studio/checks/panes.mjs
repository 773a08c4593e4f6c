export const panes = {};
