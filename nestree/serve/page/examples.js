// Texts to try.

export const EXAMPLES = {
  "A visit": `Barack Obama, the former president of the United States, visited the University of California at Berkeley in May 2016 with his wife Michelle. The mayor of the city met them at the gate of the old library.`,
  "A family story": `My grandmother's brother left the village in the winter of 1931. He worked on the docks of Hamburg, married the daughter of a Danish sailor, and sent home a box of oranges every Christmas. The youngest of their four children still lives in the house near the harbour 🏠.`,
  "Research": `A team of biologists at the Max Planck Institute in Cologne studied the roots of 40 tomato plants. Bacteria on the surface of the roots protected the plants from a fungus that kills seedlings within a week. The head of the laboratory called the result of the experiment a surprise.`,
  "A trip": `The night train from Vienna to Venice leaves at 9:27 pm and crosses the Alps before sunrise. Travellers with a bicycle need a ticket for it. The café behind the station of Villach sells the best apple cake in the south of Austria 🍰.`,
  "Business": `The board of Lumen Freight, a carrier with offices in Rotterdam and Lagos, accepted the offer of its largest customer on Monday. The chief executive's plan to buy a second fleet of electric trucks was dropped. Shares of the company fell by four percent.`,
};
