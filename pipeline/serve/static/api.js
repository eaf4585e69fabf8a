// Requests to the server; error messages are sentences.

export class ApiError extends Error {}

export async function ask(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value !== "" && value !== null && value !== undefined));
  const response = await fetch(query.size ? `${path}?${query}` : path, { signal });
  if (response.ok) return response.json();
  // After a reload, the page shows the login form.
  if (response.status === 401) location.reload();
  const body = await response.json().catch(() => ({}));
  throw new ApiError(body.error ?? `the server responded with status ${response.status} to ${path}`);
}

export const jobPath = (job, what = "") => `/api/jobs/${encodeURIComponent(job)}${what && `/${what}`}`;
