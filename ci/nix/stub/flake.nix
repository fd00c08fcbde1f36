# Stands in for nixpkgs where that cannot be fetched: derivations of the names and versions that the flake of the
# project asks for, so that Nix can instantiate it. Nothing of this can be built.
{
  outputs = { self }: { };
}
