// The viewer's script, as one file: mistakes, and names that hide other names.
export default [
  {
    languageOptions: {
      ecmaVersion: 2023,
      sourceType: "script",
      globals: Object.fromEntries(
        (
          "document window location history navigator localStorage sessionStorage console URL URLSearchParams Blob Image XMLSerializer " +
          "setTimeout clearTimeout setInterval clearInterval Path2D requestAnimationFrame cancelAnimationFrame getComputedStyle matchMedia ResizeObserver " +
          "MutationObserver IntersectionObserver Event CustomEvent KeyboardEvent MouseEvent PointerEvent HTMLElement SVGElement Element Node " +
          "FileReader TextEncoder TextDecoder performance CSS DOMParser fetch atob btoa innerWidth innerHeight scrollTo addEventListener alert " +
          "confirm prompt structuredClone queueMicrotask crypto devicePixelRatio"
        )
          .split(/\s+/)
          .map((name) => [name, "readonly"]),
      ),
    },
    rules: {
      "no-shadow": "error",
      "no-undef": "error",
      "no-unused-vars": "error",
      "no-redeclare": "error",
      "no-const-assign": "error",
      "no-dupe-keys": "error",
      "no-dupe-args": "error",
      "no-unreachable": "error",
      "no-self-assign": "error",
      "no-self-compare": "error",
      "no-cond-assign": "error",
      "no-implicit-globals": "error",
      "no-loss-of-precision": "error",
      "no-unsafe-negation": "error",
      "use-isnan": "error",
      "valid-typeof": "error",
      "no-var": "error",
      "prefer-const": "error",
      eqeqeq: ["error", "always", { null: "ignore" }],
    },
  },
];
