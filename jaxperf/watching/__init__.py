"""Watch an unchanged program: where its time goes, why, and what to change."""
